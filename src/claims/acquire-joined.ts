import {
  AcquireRefusedError,
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  DatabaseError,
  FenceLostError,
  NestedTransactionError,
  StatementTimeoutError,
} from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import type { Tx } from '../postgres/executor.js'
import { isConflict } from '../postgres/fault.js'
import { toOutcome } from '../postgres/json.js'
import { MarkedCall } from '../postgres/marked-call.js'
import { isInside } from '../postgres/open-transaction.js'
import { sleep } from '../postgres/sleep.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { control } from '../postgres/together.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { FramedTransaction } from '../postgres/transaction-handle.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { AcquireCall, Ending, Verdict } from './acquire-call.js'
import { acquireClaims, endAcquired } from './acquire-statements.js'
import type { ToldAcquire } from './acquire-told.js'
import { takeTurn } from './key-turns.js'
import type { ToldClaim } from './told-claim.js'
import { withSavepoint } from './with-savepoint.js'

const MAX_LOOKS = 4
const RETRY_MS = 100
/** Raised by `acquire_end` in the message that also commits. */
const NOT_HELD = 'DIB01'
const SAVEPOINT = control('savepoint dibs_acquire')
const UNDO = control('rollback to savepoint dibs_acquire')

type Work = (tx: Transaction, grants: unknown[]) => Promise<unknown>

/** In a transaction of its own, when it is this call's turn among those of this process. */
export async function acquireAlone(call: AcquireCall, deadlineMs: number, fn: Work): Promise<unknown> {
  if (isInside(call.database)) throw new NestedTransactionError(call.settings.calledAs)
  const { turn } = call
  const run = new AloneRun(call, deadlineMs, fn)
  if (turn === undefined || call.leftMs === 0) return await run.answer()
  const end = await takeTurn(call.database, turn, call.leftMs)
  if (!end) throw call.once?.refuse() ?? call.refuse(new BusyError(call.describe(), call.waitedMs, RETRY_MS))
  try {
    return await run.answer()
  } finally {
    end(run.hasOutcome)
  }
}

/** What became of one transaction. */
interface Ended {
  readonly verdict: Verdict
  readonly tx: FramedTransaction
  readonly value?: unknown
  readonly failure?: { readonly error: unknown }
}

/** BEGIN and all claims are one message, their outcome and COMMIT another. */
class AloneRun {
  hasOutcome = false
  readonly #call: AcquireCall
  readonly #deadlineMs: number
  readonly #fn: Work
  /** By id and fence: what this call has run, to know it again if the answer to its COMMIT was lost. */
  readonly #runs = new Map<string, Ended>()

  constructor(call: AcquireCall, deadlineMs: number, fn: Work) {
    this.#call = call
    this.#deadlineMs = deadlineMs
    this.#fn = fn
  }

  /** A lost answer to COMMIT is looked into by claiming again, where a claim would show it. */
  async answer(): Promise<unknown> {
    let unknown: CommitOutcomeUnknownError | undefined
    for (let looks = 0; ; ) {
      try {
        const ended = await this.#transact()
        const answer = await this.#conclude(ended)
        if (answer !== WAIT) return answer
      } catch (error) {
        if (error instanceof CommitOutcomeUnknownError && this.#call.stores) unknown ??= error
        else if (!unknown || !isAway(error)) throw error
        if (++looks === MAX_LOOKS) throw unknown
        await sleep(fullJitterMs(looks, 100, 1_000))
      }
    }
  }

  async #conclude({ verdict, value, failure }: Ended): Promise<unknown> {
    const call = this.#call
    if (verdict.todo === 'wait') {
      await sleep(verdict.pauseMs)
      return WAIT
    }
    this.hasOutcome = true
    if (verdict.todo === 'run') {
      if (failure) throw failure.error
      return value
    }
    const own = this.#findOwn(verdict)
    if (own) {
      await own.tx.runAfterCommit()
      if (own.failure) throw own.failure.error
      return own.value
    }
    if (verdict.todo === 'answer') return call.answer(verdict.claim, false)
    throw verdict.error
  }

  /** A claim that stands where this call has made one is its own. */
  #findOwn(verdict: Verdict): Ended | undefined {
    if (this.#runs.size === 0) return undefined
    const found: (ToldClaim | undefined)[] =
      verdict.todo === 'answer'
        ? [verdict.claim]
        : verdict.todo === 'refuse'
          ? verdict.told.results.map(({ claim }) => claim)
          : []
    return found.map((claim) => claim && this.#runs.get(nameRun(claim))).find((ended) => ended !== undefined)
  }

  async #transact(): Promise<Ended> {
    const call = this.#call
    const opening = () => {
      const claim = call.database.bind(acquireClaims, call.values())
      return call.mayKeep ? [claim, SAVEPOINT] : [claim]
    }
    try {
      return await repeatTransaction(
        call.database,
        (tx) => this.#run(tx),
        { deadlineMs: this.#deadlineMs },
        { opening },
      )
    } catch (error) {
      if (!(error instanceof DatabaseError && error.sqlState === NOT_HELD)) throw error
      throw new FenceLostError(call.describe(), 0, { cause: error })
    }
  }

  async #run(tx: FramedTransaction): Promise<Ended> {
    const verdict = this.#call.judge(tx.opened[0])
    if (verdict.todo === 'run') {
      const ended = await this.#work(tx, verdict)
      for (const claim of claimsOf(verdict.told)) this.#runs.set(nameRun(claim), ended)
      return ended
    }
    // A refusal that is the outcome of the idempotency key is committed.
    if (!(verdict.todo === 'refuse' && verdict.isStored)) tx.leave()
    return { verdict, tx }
  }

  async #work(tx: FramedTransaction, verdict: Verdict & { readonly todo: 'run' }): Promise<Ended> {
    const call = this.#call
    const bindEnd = (end: Ending) =>
      call.database.bind(endAcquired, endValues(call, verdict.told, end, null, true))
    try {
      const { value, text } = readValue(call, await this.#fn(tx, call.grants(verdict.told)))
      if (call.stores) tx.closeWith([bindEnd({ isDone: true, text, keepsOnce: false, restMs: null })])
      return { verdict, tx, value }
    } catch (error) {
      const keeps = call.keeps(error)
      // After a conflict nothing has failed yet: it is repeated from the start.
      if (!keeps.once && (!keeps.slots || isConflict(error))) throw error
      tx.dropAfterCommits()
      const text = storeFailure(error)
      tx.closeWith([UNDO, bindEnd({ isDone: false, text, keepsOnce: keeps.once, restMs: null })])
      return { verdict, tx, failure: { error } }
    }
  }
}

const WAIT = Symbol('wait')

/** A server that takes the place of another may number its transactions anew, but not its fences. */
const nameRun = ({ id, fence }: ToldClaim): string => `${id} ${fence}`

const claimsOf = ({ once, results }: ToldAcquire): ToldClaim[] =>
  [once, ...results.map(({ claim }) => claim)].filter((claim) => claim !== null && claim !== undefined)

/** The server cannot be reached, or does not get to it; or the transaction that was cut off may be the one that is about to decide. */
const isAway = (error: unknown): boolean =>
  error instanceof ConnectionLostError ||
  error instanceof BusyError ||
  error instanceof StatementTimeoutError ||
  (error instanceof AcquireRefusedError &&
    error.failures.some((one) => one.kind === 'singleton' && one.error instanceof BusyError))

/** In the caller's transaction: one statement for all claims, one for their outcome. */
export async function acquireInside<X extends Tx>(
  call: AcquireCall,
  tx: X,
  fn: (tx: X, grants: unknown[]) => Promise<unknown>,
): Promise<unknown> {
  const marked = new MarkedCall(call.database, tx, `${call.settings.calledAs} of ${call.describe()}`)
  for (;;) {
    const [row] = await marked.first(acquireClaims, call.values())
    const verdict = call.judge(row)
    if (verdict.todo === 'answer') return call.answer(verdict.claim, false)
    if (verdict.todo === 'refuse') throw verdict.error
    if (verdict.todo === 'run') return runInside(call, marked, tx, verdict.told, fn)
    await sleep(verdict.pauseMs)
  }
}

async function runInside<X extends Tx>(
  call: AcquireCall,
  marked: MarkedCall,
  tx: X,
  told: ToldAcquire,
  fn: (tx: X, grants: unknown[]) => Promise<unknown>,
): Promise<unknown> {
  const end = (ending: Ending) => marked.last(endAcquired, endValues(call, told, ending, null, false))
  let read: { readonly value: unknown; readonly text: string | null }
  try {
    read = await withSavepoint(call.database, tx, async () =>
      readValue(call, await fn(tx, call.grants(told))),
    )
  } catch (error) {
    // If the caller goes on and commits, nothing of it must stay behind. What the function did is undone by now, so that all is as
    // it was when it was claimed.
    await end({
      isDone: false,
      text: storeFailure(error),
      keepsOnce: call.keeps(error).once,
      restMs: null,
    }).catch(() => {})
    throw error
  }
  if (!call.stores) {
    await marked.close()
    return read.value
  }
  const [row] = await end({ isDone: true, text: read.text, keepsOnce: false, restMs: null })
  if (JSON.parse(`${row?.told}`).state !== 'ended')
    throw new FenceLostError(call.describe(), told.once?.fence ?? 0)
  return read.value
}

export function endValues(
  call: AcquireCall,
  told: ToldAcquire,
  end: Ending,
  waitMs: string | null,
  must: boolean,
): (string | null)[] {
  const { leaseMs } = call.settings
  return [
    call.endings(told, end),
    leaseMs === null ? null : call.holder,
    String(end.isDone),
    waitMs,
    String(must),
  ]
}

/** What is stored is read as later callers will read it. */
export function readValue(
  call: AcquireCall,
  value: unknown,
): { readonly value: unknown; readonly text: string | null } {
  if (!call.stores) return { value, text: null }
  const text = value === undefined ? null : toOutcome('outcome', value)
  return { value: text === null ? undefined : JSON.parse(text), text }
}
