import {
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  DatabaseError,
  NestedTransactionError,
  StatementTimeoutError,
} from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import type { Tx } from '../postgres/executor.js'
import { toOutcome } from '../postgres/json.js'
import { MarkedCall } from '../postgres/marked-call.js'
import { isInside } from '../postgres/open-transaction.js'
import { sleep } from '../postgres/sleep.js'
import { parseStored } from '../postgres/standard-schema.js'
import { isTerminalError, storeFailure } from '../postgres/stored-failure.js'
import { control } from '../postgres/together.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { FramedTransaction } from '../postgres/transaction-handle.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { endClaim, finishClaim } from './claim-statements.js'
import { takeTurn } from './key-turns.js'
import type { OnceCall } from './once-call.js'
import type { OnceResult } from './once-spec.js'
import { readTold, type ToldClaim } from './told-claim.js'

/** How often a lost answer to COMMIT is looked into. */
const MAX_LOOKS = 4

/** Raised by `claim_finish` in the message that also commits. */
const NOT_HELD = 'DIB01'

const DEADLINE_MS = 30_000

/** What the function does is undone to here if it fails for good, and the claim stays. */
const SAVEPOINT = control('savepoint dibs_claim')
const UNDO = control('rollback to savepoint dibs_claim')

type Work = (tx: Transaction) => Promise<unknown>

/** Returned by a function of our own in a transaction of its own: this is stored, and what it wrote is undone. */
export class WithoutWrites {
  readonly outcome: unknown

  constructor(outcome: unknown) {
    this.outcome = outcome
  }
}

/** In a transaction of its own, when it is this call's turn among those of this process. */
export async function onceAlone(
  call: OnceCall,
  deadlineMs: number = DEADLINE_MS,
  fn: Work,
): Promise<OnceResult<unknown>> {
  const { database, spec } = call
  if (isInside(database)) throw new NestedTransactionError('dibs.once')
  if (spec.waitMs === 0) return await new AloneRun(call, deadlineMs, fn).answer()
  const end = await takeTurn(database, JSON.stringify([spec.scope, spec.key]), call.leftMs)
  if (!end) throw call.refuse()
  call.noteTurn()
  const run = new AloneRun(call, deadlineMs, fn)
  try {
    return await run.answer()
  } finally {
    end(run.hasOutcome)
  }
}

/** What became of one transaction. */
interface Ended {
  readonly todo: 'run' | 'answer' | 'wait'
  readonly claim: ToldClaim
  readonly tx: FramedTransaction
  readonly outcome?: string | null
  readonly failure?: { readonly error: unknown }
}

/** BEGIN and the claim are one message, the outcome and COMMIT another. */
class AloneRun {
  /** The claim is known to have one, be it an error. */
  hasOutcome = false
  readonly #call: OnceCall
  readonly #deadlineMs: number
  readonly #fn: Work
  /** How often the function was run. */
  #starts = 0
  /** By its holder and fence: what this call has run, to know it again if the answer to its COMMIT was lost. */
  readonly #runs = new Map<string, Ended>()

  constructor(call: OnceCall, deadlineMs: number, fn: Work) {
    this.#call = call
    this.#deadlineMs = deadlineMs
    this.#fn = fn
  }

  /**
   * An answer to COMMIT that was lost is looked into by calling again: what was kept is found, and what was not is run
   * again. If the server stays away, it is as unknown as before.
   */
  async answer(): Promise<OnceResult<unknown>> {
    let unknown: CommitOutcomeUnknownError | undefined
    for (let looks = 0; ; ) {
      const starts = this.#starts
      try {
        const result = await this.#tryOnce()
        if (result !== 'wait') return result
        await sleep(this.#call.pauseMs)
      } catch (error) {
        if (error instanceof CommitOutcomeUnknownError) unknown ??= error
        else if (!unknown) throw error
        // A look that fails does not make it known; what comes of a second run does.
        else if (!isAway(error))
          throw error instanceof DatabaseError && this.#starts === starts ? unknown : error
        if (++looks === MAX_LOOKS) throw unknown
        await sleep(fullJitterMs(looks, 100, 1_000))
      }
    }
  }

  async #tryOnce(): Promise<OnceResult<unknown> | 'wait'> {
    const call = this.#call
    const ended = await this.#transact()
    if (ended.todo === 'wait') return 'wait'
    this.hasOutcome = true
    if (ended.todo === 'run') {
      if (ended.failure) throw ended.failure.error
      return call.answerOwn(ended.claim, ended.outcome ?? null, readTold(ended.tx.closed[0]))
    }
    const own = this.#runs.get(nameRun(ended.claim))
    if (!own) return call.answer(ended.claim, true)
    await own.tx.runAfterCommit()
    if (own.failure) throw own.failure.error
    return call.answer(ended.claim, false)
  }

  async #transact(): Promise<Ended> {
    const { database } = this.#call
    const opening = () => [database.bind(this.#call.beginJoined, this.#call.joinedValues()), SAVEPOINT]
    const options = { deadlineMs: this.#deadlineMs }
    try {
      return await repeatTransaction(database, (tx) => this.#run(tx), options, { opening })
    } catch (error) {
      const isLost = error instanceof DatabaseError && error.sqlState === NOT_HELD
      throw isLost ? this.#call.lost(0, 'outcome') : error
    }
  }

  async #run(tx: FramedTransaction): Promise<Ended> {
    const { todo, claim } = this.#call.judge(tx.opened[0])
    if (todo !== 'run') {
      tx.leave()
      return { todo, claim, tx }
    }
    this.#starts++
    const ended = await this.#work(tx, claim)
    this.#runs.set(nameRun(claim), ended)
    return ended
  }

  async #work(tx: FramedTransaction, claim: ToldClaim): Promise<Ended> {
    const call = this.#call
    const finish = (status: 'active' | 'failed', outcome: string | null) =>
      call.database.bind(finishClaim, finishValues(call, claim.fence, status, outcome, true))
    try {
      const value = await this.#fn(tx)
      const isUndone = value instanceof WithoutWrites
      const outcome = await readOutcome(call, isUndone ? value.outcome : value)
      if (isUndone) tx.dropAfterCommits()
      tx.closeWith(isUndone ? [UNDO, finish('active', outcome)] : [finish('active', outcome)])
      return { todo: 'run', claim, tx, outcome }
    } catch (error) {
      if (!isTerminalError(error, call.spec.isTerminal)) throw error
      tx.dropAfterCommits()
      tx.closeWith([UNDO, finish('failed', storeFailure(error))])
      return { todo: 'run', claim, tx, failure: { error } }
    }
  }
}

/** A server that takes the place of another may number its transactions anew, but not its fences. */
const nameRun = ({ holder, fence }: ToldClaim): string => `${holder} ${fence}`

/** The server cannot be reached, or does not get to it. */
const isAway = (error: unknown): boolean =>
  error instanceof ConnectionLostError || error instanceof BusyError || error instanceof StatementTimeoutError

/** In the caller's transaction: one statement for the claim, one for the outcome. */
export async function onceInside<X extends Tx>(
  call: OnceCall,
  tx: X,
  fn: (tx: X) => Promise<unknown>,
): Promise<OnceResult<unknown>> {
  const marked = new MarkedCall(call.database, tx, `dibs.once of ${call.subject}`)
  for (;;) {
    const [row] = await marked.first(call.beginJoined, call.joinedValues())
    const { todo, claim } = call.judge(row)
    if (todo === 'answer') return call.answer(claim, true)
    if (todo === 'run') return runInside(call, marked, claim, () => fn(tx))
    await sleep(call.pauseMs)
  }
}

async function runInside(
  call: OnceCall,
  marked: MarkedCall,
  claim: ToldClaim,
  fn: () => Promise<unknown>,
): Promise<OnceResult<unknown>> {
  const { spec } = call
  const { fence } = claim
  const finish = (status: 'active' | 'failed', outcome: string | null) =>
    marked.last(finishClaim, finishValues(call, fence, status, outcome, false))
  let outcome: string | null
  try {
    outcome = await readOutcome(call, await fn())
  } catch (error) {
    // If the caller goes on and commits, the claim must not stay behind half done. If the transaction is aborted, this fails
    // like everything else in it, and the claim goes with it.
    const release = [
      spec.scope,
      spec.key,
      String(fence),
      null,
      null,
      spec.keepMs,
      storeFailure(error),
      'false',
    ]
    await (isTerminalError(error, spec.isTerminal)
      ? finish('failed', storeFailure(error))
      : marked.last(endClaim, release)
    ).catch(() => {})
    throw error
  }
  const [row] = await finish('active', outcome)
  const told = readTold(row)
  if (told.state !== 'stored') throw call.lost(fence, 'outcome')
  return call.answerOwn(claim, outcome, told)
}

/** An outcome that cannot be stored, or read again, must not be committed. */
async function readOutcome(call: OnceCall, value: unknown): Promise<string | null> {
  const outcome = value === undefined ? null : toOutcome('outcome', value)
  await parseStored(call.spec.result, outcome === null ? undefined : JSON.parse(outcome), call.subject)
  return outcome
}

function finishValues(
  { spec }: OnceCall,
  fence: number,
  status: 'active' | 'failed',
  outcome: string | null,
  must: boolean,
) {
  return [spec.scope, spec.key, String(fence), null, status, outcome, spec.keepMs, String(must)]
}
