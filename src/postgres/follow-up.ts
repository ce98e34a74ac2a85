import type { Checkout } from './checkout.js'
import type { Connections } from './connections.js'
import { forgetNames } from './pg-query.js'
import { type BoundStatement, queryWithFollowUp } from './pipeline.js'
import type { FollowUp } from './send-options.js'
import type { TextRow } from './text-values.js'

/**
 * Limits that keep follow-ups from using up the pool: the time of one, the number at a time, and the pause after one
 * without an answer.
 */
export const FOLLOW_UP_MS = 2_000
const MAX_RUNNING = 2
const COOLDOWN_MS = 30_000

/**
 * Sends a statement and a second one in the same message. The second starts when the first is over, and costs the
 * caller no time. The connection stays in use until the second is answered.
 */
export class FollowUps {
  readonly #connections: Connections
  #running = 0
  #pausedUntil = 0

  constructor(connections: Connections) {
    this.#connections = connections
  }

  /** False while a follow-up would take too many connections, or where two transactions cannot share a message. */
  get isPossible(): boolean {
    const { autocommitFits, prepared } = this.#connections
    return autocommitFits && prepared && this.#running < MAX_RUNNING && performance.now() >= this.#pausedUntil
  }

  /** Returns undefined if this client cannot send two transactions in one message. Nothing was sent then. */
  start(
    checkout: Checkout,
    first: BoundStatement,
    { statement, ifNotSent }: FollowUp,
  ):
    | { readonly first: Promise<readonly TextRow[]>; readonly end: (isFirstDone: boolean) => void }
    | undefined {
    // Other calls may have started follow-ups while this one waited for a client.
    const sent = this.isPossible ? queryWithFollowUp(checkout.client, first, statement) : undefined
    if (!sent) return undefined
    this.#running++
    return {
      first: sent.first.then(({ rows }) => rows),
      end: (isFirstDone) =>
        this.#connections.finish(this.#finish(checkout, sent.second, isFirstDone ? ifNotSent : () => {})),
    }
  }

  async #finish(checkout: Checkout, second: Promise<unknown>, ifNotSent: () => void): Promise<void> {
    checkout.bound(FOLLOW_UP_MS)
    try {
      await second
      checkout.release()
    } catch (error) {
      if (checkout.wasCut) this.#pausedUntil = performance.now() + COOLDOWN_MS
      forgetNames(checkout.client, error)
      checkout.release(error)
      ifNotSent()
    } finally {
      this.#running--
    }
  }
}
