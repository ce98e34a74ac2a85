import { BusyError } from '../errors.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { BRIEF_ROW_WAIT_MS, BRIEFLY, hedgedSender } from '../postgres/hedged-sender.js'
import { isTransient, retry } from '../postgres/retry.js'
import type { TextRow } from '../postgres/text-values.js'
import type { LockContext, LockIdentity } from './lock-context.js'
import { lockTopic } from './lock-notifications.js'
import { releaseLock } from './lock-statements.js'

/** How long a release waits for a call that has locked the row: a takeover, a renewal or a guarded transaction. */
const ROW_WAIT_MS = 5_000

/** How long a release is tried. A lease that is over is free in any case. */
const MAX_MS = 10_000
const MIN_MS = 1_000

interface ReleaseResult {
  readonly state: 'released' | 'lost'
  /** True if other callers wait for the lock. */
  readonly isWanted?: boolean
}

/** The release of one held lock. It may be sent several times: after a lost answer, and when the caller calls `release` again. */
export class LockRelease {
  readonly #context: LockContext
  readonly #grant: LockIdentity
  /** True if a release was sent and has no answer. */
  #mayBeReleased = false

  constructor(context: LockContext, grant: LockIdentity) {
    this.#context = context
    this.#grant = grant
  }

  /** Releases the lock, and notifies the calls that wait for it. `endsAt`: when the lease is over, by `performance.now()`. */
  async send(endsAt: number): Promise<'released' | 'lost'> {
    const startedAt = performance.now()
    const until = startedAt + Math.min(MAX_MS, Math.max(MIN_MS, endsAt - startedAt))
    const { state, isWanted } = await retry(() => this.#sendOnce(until), {
      isRetryable: (error) => this.#mayBeReleased || isTransient(error),
      ...{ baseMs: 20, maxMs: 500 },
      deadlineAt: until, // guard: lock.release-bound-retry
    }).catch((error) => {
      if (!hasWaitedInVain(error)) throw error
      const subject = `the row of lock "${this.#grant.name}", to release it`
      throw new BusyError(subject, performance.now() - startedAt, 100, { cause: error })
    })
    // guard: lock.release-notify
    if (isWanted) this.#context.wakeups.notify(lockTopic(this.#grant.name))
    return state
  }

  async #sendOnce(until: number): Promise<ReleaseResult> {
    const { name, permit, holder, fence } = this.#grant
    const waitMs = Math.ceil(Math.min(ROW_WAIT_MS, Math.max(MIN_MS, until - performance.now())))
    const values = [name, String(permit), holder, String(fence)]
    const { database } = this.#context
    const connection = hedgedSender(database, {
      ...BRIEFLY,
      dedicatedValues: [...values, BRIEF_ROW_WAIT_MS],
      isFinal: (rows) => readResult(rows).state !== 'lost',
      onUnanswered: () => {
        this.#mayBeReleased = true
      },
    })
    const options = { connection, deadlineMs: waitMs + 1_000 }
    const result = readResult(await database.send(releaseLock, [...values, String(waitMs)], options))
    // By its own clock, this holder held the lock when it first sent the release. So that release was the one that succeeded.
    return this.#mayBeReleased && result.state === 'lost' ? { state: 'released' } : result
  }
}

const readResult = ([row]: readonly TextRow[]): ReleaseResult => JSON.parse(`${row?.result}`)
