import type { NestedCall } from '../errors/transaction-errors.js'
import type { Database } from '../postgres/database.js'
import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import type { ClaimResult } from './claim-result.js'

/** How a holder learns that its claim is lost: by a write that was refused, or only by its own clock (`deadline`). */
export type LossKind = 'renewal' | 'step' | 'outcome' | 'deadline'

/** A statement with its values. */
export interface ClaimRequest {
  readonly statement: Statement
  readonly values: TextValue[]
}

/** The next step after the database has answered. `G` is the type of the grant. */
export type Decision<G> =
  | { readonly todo: 'run'; readonly granted: G }
  /** The claim has its outcome, stored by an earlier call. */
  | { readonly todo: 'answer'; readonly claim: ClaimResult }
  /** Another caller is in the way: begin again after a pause. */
  | { readonly todo: 'wait'; readonly pauseMs: number }
  | {
      readonly todo: 'refuse'
      readonly error: Error
      /** True if the refusal is the outcome of the idempotency key. It is stored if the transaction commits. */
      readonly isStored: boolean
      /** The claims that refused. */
      readonly claims: readonly ClaimResult[]
    }

/** The outcome of the function. */
export interface Outcome {
  /** The value that later callers will get. */
  readonly value: unknown
  /** The value as JSON. Null if it is undefined. */
  readonly json: string | null
}

/** How a run ended. */
export interface Ending {
  /**
   * - `done`: stores the outcome.
   * - `unstorable`: the work is done, but its outcome cannot be stored. Stores the error, so that the work is not done again.
   * - `failed`: stores the error as the outcome.
   * - `released`: stores no outcome. Another call may run the function.
   */
  readonly kind: 'done' | 'unstorable' | 'failed' | 'released'
  /** The outcome or the error. */
  readonly json: string | null
  /**
   * Only for `released`. Null frees the claim at once. A number means that the work may have happened: the attempt counts as lost, and the claim can be taken
   * over after this time.
   */
  readonly retryInMs?: number | null
  /** Only for `released`: the attempt does not count. */
  readonly isVoid?: boolean
}

/** The recorded ending of a run. */
export interface EndResult extends Partial<Pick<ClaimResult, 'completedAt'>> {
  readonly isRecorded: boolean
  /** The claim, if another call has stored the outcome. */
  readonly other?: ClaimResult | undefined
}

/**
 * A call of `once`, `acquire` or `singleton`: its statements, and how it reads their results. Every call has three steps:
 *
 * 1. One statement begins all claims. `judge` reads its result and decides: run the function, return a stored outcome, pause and begin again, or refuse.
 * 2. The function runs.
 * 3. One statement ends all claims: it checks each fence, and stores the outcome, the error, or that the claims are free again.
 *
 * Where the steps run depends on the mode:
 *
 * - `runInOwnTransaction`: all steps in a transaction of Dibs.
 * - `runInCallerTransaction`: all steps in the caller's transaction.
 * - `runLeased`: steps 1 and 3 commit by themselves. In between, this process renews a lease.
 *
 * `G` is what step 1 grants, `A` the result of the call.
 */
export interface ClaimCall<G, A> {
  readonly database: Database
  /** The public method, for errors. */
  readonly calledAs: NestedCall
  /** The claims, for errors. */
  readonly subject: string
  /** Calls of this process with the same key run one after another. Undefined: there is no call to wait for. */
  readonly queueKey: string | undefined
  /** The remaining time to wait for other callers. */
  readonly leftMs: number
  /** False if no claim stores the outcome. */
  readonly storesOutcome: boolean
  /** True if the claims may be kept when the function fails. Its writes are then undone to a savepoint. */
  readonly mayKeepFailure: boolean
  /** True if the function runs in a savepoint of the caller's transaction. */
  readonly usesSavepoint: boolean

  /** The statement that begins the claims. */
  readonly beginStatement: Statement
  /** Called for each time that the statement is sent. */
  beginValues(): TextValue[]
  judge(row: TextRow | undefined): Decision<G>
  /** Emits how long the call waited in the queue of this process. */
  emitQueued(): void
  /** Refuses this call: its time to wait is over. */
  refuse(): Error
  claimsOf(granted: G): readonly ClaimResult[]

  /** Reads the outcome of the function. Throws if it cannot be stored. */
  readOutcome(value: unknown): Promise<Outcome>
  /** How claims that are kept after this error end. Undefined if none is kept. */
  failureKind(error: unknown): 'failed' | 'released' | undefined
  /** @param mustHold true raises an error if a claim is not held any more */
  end(granted: G, ending: Ending, waitMs: string | null, mustHold: boolean): ClaimRequest
  readEnd(row: TextRow | undefined): Promise<EndResult>
  /** The result of a call whose function has run. */
  answerOwn(granted: G, outcome: Outcome, completedAt: number | null): Promise<A>
  /** The result of a call that found a stored outcome. Throws a stored error. */
  answerStored(claim: ClaimResult): Promise<A>
  lost(how: LossKind, granted?: G): Error
}

/** A call whose claims are held by a lease. */
export interface LeasedCall<G, A> extends ClaimCall<G, A> {
  readonly leaseMs: number
  /** True if an attempt that may have had an effect is not repeated without a decision. */
  readonly holdsAmbiguous: boolean
  renewal(granted: G, waitMs: number): ClaimRequest
  /**
   * When the lease began, or earlier, by `performance.now()`. The arrival of the answer says nothing, because this process may have been suspended before
   * it read the answer.
   */
  leaseStart(granted: G, sentAt: number, waitedMs: number): number
  /** Emits that an ending was not recorded. Returns the error for the caller, or undefined if the caller does not need to know. */
  explainUnrecorded(granted: G, ending: Ending, error: unknown): Error | undefined
}

/** Begins the claims, and again after each pause, until the decision is final. */
export async function beginClaims<G>(
  call: Pick<ClaimCall<G, unknown>, 'judge'>,
  send: () => Promise<readonly TextRow[]>,
): Promise<Exclude<Decision<G>, { readonly todo: 'wait' }>> {
  for (;;) {
    const [row] = await send()
    const decision = call.judge(row)
    if (decision.todo !== 'wait') return decision
    await sleep(decision.pauseMs)
  }
}
