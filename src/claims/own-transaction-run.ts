import {
  AcquireRefusedError,
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  DatabaseError,
  NestedTransactionError,
  StatementTimeoutError,
} from '../errors.js'
import { keyedMutexOf } from '../postgres/keyed-mutex.js'
import { controlStatement } from '../postgres/pipeline.js'
import { retry } from '../postgres/retry.js'
import { sleep } from '../postgres/sleep.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { InternalTransaction } from '../postgres/transaction-handle.js'
import { isInside } from '../postgres/transaction-scope.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { ClaimCall, Decision, Ending, Outcome } from './claim-call.js'
import type { ClaimResult } from './claim-result.js'

/** How many times to check whether a COMMIT without an answer has taken effect. */
const MAX_CHECKS = 4

/** The SQLSTATE that `claim_store_outcome` and `acquire_end` raise in the message that also commits. */
const NOT_HELD = 'DIB01'

const SAVEPOINT = controlStatement('savepoint dibs_claim')
const UNDO = controlStatement('rollback to savepoint dibs_claim')

/** Returned by an internal function: `outcome` is stored, and the writes of the function are undone. */
export class WithoutWrites {
  readonly outcome: unknown

  constructor(outcome: unknown) {
    this.outcome = outcome
  }
}

type Work<G> = (tx: Transaction, granted: G) => Promise<unknown>

/**
 * Claims, runs the function and stores its outcome in one transaction. Calls of this process with the same key wait for each
 * other here, and not each on a connection of the pool.
 */
export async function runInOwnTransaction<G, A>(
  call: ClaimCall<G, A>,
  deadlineMs: number,
  fn: Work<G>,
): Promise<A> {
  const { database, queueKey } = call
  if (isInside(database)) throw new NestedTransactionError(call.calledAs)
  const run = new OwnTransactionRun(call, deadlineMs, fn)
  if (queueKey === undefined || call.leftMs === 0) return await run.answer()
  const release = await keyedMutexOf(database).acquire(queueKey, call.leftMs)
  if (!release) throw call.refuse()
  call.emitQueued()
  try {
    return await run.answer()
  } finally {
    // Calls for a key that has its outcome need not wait for each other.
    release(run.hasOutcome)
  }
}

/** A transaction in which the function has run. */
interface Attempt<G> {
  readonly tx: InternalTransaction
  readonly granted: G
  readonly result: { readonly outcome: Outcome } | { readonly error: unknown }
}

/** A transaction that ended without a run of the function. */
interface Unclaimed<G> {
  readonly decision: Exclude<Decision<G>, { readonly todo: 'run' }>
}

/** BEGIN and the claims are one message. The outcome and COMMIT are another. */
class OwnTransactionRun<G, A> {
  hasOutcome = false
  readonly #call: ClaimCall<G, A>
  readonly #deadlineMs: number
  readonly #fn: Work<G>
  /** How often the function has run. */
  #starts = 0
  /**
   * The attempts of this call, by their claims. A claim that is found among them shows that a COMMIT without an answer has
   * taken effect.
   */
  readonly #attempts = new Map<string, Attempt<G>>()

  constructor(call: ClaimCall<G, A>, deadlineMs: number, fn: Work<G>) {
    this.#call = call
    this.#deadlineMs = deadlineMs
    this.#fn = fn
  }

  /**
   * After a lost answer to COMMIT, claims again. If the claim was committed, this call recognizes it; otherwise the function
   * runs again. If the server stays unavailable, the outcome stays unknown.
   */
  async answer(): Promise<A> {
    let unknown: CommitOutcomeUnknownError | undefined
    let isDecided = false
    const attempt = async (): Promise<A> => {
      const starts = this.#starts
      try {
        return await this.#claimAndRun()
      } catch (error) {
        if (error instanceof CommitOutcomeUnknownError && this.#call.storesOutcome) unknown ??= error
        else if (!unknown) throw error
        // A failed check leaves the outcome unknown. The error of a second run is the outcome.
        // guard: once.lost-commit-away
        else if (!isUndecided(error)) {
          isDecided = true
          throw error instanceof DatabaseError && this.#starts === starts ? unknown : error
        }
        throw unknown
      }
    }
    return await retry(attempt, {
      isRetryable: (error) => unknown !== undefined && error === unknown && !isDecided,
      maxAttempts: MAX_CHECKS, // guard: once.lost-commit-look
      baseMs: 100,
      maxMs: 1_000,
    })
  }

  async #claimAndRun(): Promise<A> {
    for (;;) {
      const ended = await this.#transact()
      if ('granted' in ended) return await this.#answerOwn(ended)
      if (ended.decision.todo !== 'wait') return await this.#answerFound(ended.decision)
      await sleep(ended.decision.pauseMs)
    }
  }

  async #answerOwn({ tx, granted, result }: Attempt<G>, found?: ClaimResult): Promise<A> {
    this.hasOutcome = true
    if ('error' in result) throw result.error
    const end = this.#call.storesOutcome && !found ? await this.#call.readEnd(tx.commitRows[0]) : found
    return await this.#call.answerOwn(granted, result.outcome, end?.completedAt ?? null)
  }

  async #answerFound(decision: Exclude<Unclaimed<G>['decision'], { readonly todo: 'wait' }>): Promise<A> {
    this.hasOutcome = true
    const claims = decision.todo === 'answer' ? [decision.claim] : decision.claims
    for (const claim of claims) {
      const own = this.#attempts.get(identify(claim))
      // guard: once.own-claim, acquire.joined-own-work
      if (own) {
        await own.tx.runAfterCommit()
        return await this.#answerOwn(own, claim)
      }
    }
    if (decision.todo === 'refuse') throw decision.error
    return await this.#call.answerStored(decision.claim)
  }

  async #transact(): Promise<Attempt<G> | Unclaimed<G>> {
    const call = this.#call
    const opening = () => {
      const claim = call.database.bind(call.beginStatement, call.beginValues())
      return call.mayKeepFailure ? [claim, SAVEPOINT] : [claim]
    }
    try {
      const options = { deadlineMs: this.#deadlineMs }
      return await repeatTransaction(call.database, (tx) => this.#run(tx), options, { opening })
    } catch (error) {
      throw error instanceof DatabaseError && error.sqlState === NOT_HELD ? call.lost('outcome') : error
    }
  }

  async #run(tx: InternalTransaction): Promise<Attempt<G> | Unclaimed<G>> {
    const decision = this.#call.judge(tx.beginRows[0])
    if (decision.todo !== 'run') {
      if (!(decision.todo === 'refuse' && decision.isStored)) tx.rollBackAtEnd()
      return { decision }
    }
    this.#starts++
    const { granted } = decision
    const attempt = { tx, granted, result: await this.#work(tx, granted) }
    for (const claim of this.#call.claimsOf(granted)) this.#attempts.set(identify(claim), attempt)
    return attempt
  }

  async #work(tx: InternalTransaction, granted: G): Promise<Attempt<G>['result']> {
    const call = this.#call
    const end = (ending: Ending) => {
      const { statement, values } = call.end(granted, ending, null, true)
      return call.database.bind(statement, values)
    }
    try {
      const value = await this.#fn(tx, granted)
      const isUndone = value instanceof WithoutWrites
      const outcome = await call.readOutcome(isUndone ? value.outcome : value)
      if (isUndone) tx.keepNoWrites()
      if (call.storesOutcome) {
        const done = end({ kind: 'done', json: outcome.json })
        tx.sendWithCommit(isUndone ? [UNDO, done] : [done]) // guard: http.undo-refused
      }
      return { outcome }
    } catch (error) {
      const kind = call.failureKind(error)
      if (!kind) throw error
      tx.keepNoWrites()
      tx.sendWithCommit([UNDO, end({ kind, json: storeFailure(error) })]) // guard: once.undo-writes, acquire.joined-undo
      return { error }
    }
  }
}

/** Identifies one attempt of a claim. After a failover, another server may use the same transaction id again, but not the same fence. */
const identify = ({ id, holder, fence }: ClaimResult): string => `${id} ${holder} ${fence}`

/** True if the server was not reached, or if the transaction whose outcome is unknown may still be open. */
const isUndecided = (error: unknown): boolean =>
  error instanceof ConnectionLostError ||
  error instanceof BusyError ||
  error instanceof StatementTimeoutError ||
  (error instanceof AcquireRefusedError &&
    error.failures.some((one) => one.kind === 'singleton' && one.error instanceof BusyError))
