import { randomUUID } from 'node:crypto'
import { BusyError, CommitOutcomeUnknownError } from '../errors.js'
import { CONNECT_MS } from '../postgres/connections.js'
import { isPassing, retry } from '../postgres/retry.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import type { LockSpec } from './lock.js'
import type { GrantedLock, LockContext } from './lock-context.js'
import { acquireLock } from './lock-statements.js'
import { releaseOrphanedLock, releaseUnwantedLock } from './orphaned-lock.js'
import type { LockRefusal } from './poll-delay.js'

/** The answer of the server to a request. */
export interface LockAnswer {
  readonly result: LockRefusal | (GrantedLock & { readonly state: 'taken' })
  /** When the request was sent, by `performance.now()`. A granted lease cannot have begun earlier. */
  readonly sentAt: number
}

/** The request waits for no row, so a longer silence is that of the network. */
const ANSWER_MS = 5_000

/** Even with `waitMs: 0`, a server that does not answer is tried until `MIN_TRIES` or `MIN_TRYING_MS`, whichever comes first. */
const MIN_TRIES = 5
const MIN_TRYING_MS = 2_000

/** The minimum wait for a connection of the pool while others have all of them, even with `waitMs: 0`. */
const MIN_CLIENT_MS = 1_000

/** Requests one lock from the server. All tries name the same holder, so that a later try finds a lock that was granted in a lost answer. */
export class LockRequest {
  readonly holder: string
  readonly #context: LockContext
  readonly #spec: LockSpec
  readonly #signal: AbortSignal
  readonly #leaseMs: number
  readonly #until: number
  tries = 0
  #waitMarkMs = 0
  /** True if the lock may have been granted in an answer that was lost. */
  #mayHold = false
  /** True if the last try got no connection of the pool. */
  #isPoolFull = false

  /** @param until when the call no longer waits for the lock, by `performance.now()` */
  constructor(context: LockContext, spec: LockSpec, signal: AbortSignal, until: number) {
    this.holder = `${spec.holder ?? THIS_PROCESS}/${randomUUID()}`
    this.#context = context
    this.#spec = spec
    this.#signal = signal
    this.#leaseMs = Math.min(spec.leaseMs, spec.maxHoldMs)
    this.#until = until
  }

  /**
   * @param waitMarkMs for how long to mark the lock as waited for
   * @returns undefined if the call was aborted. A lock that is granted later is released.
   */
  async send(waitMarkMs: number): Promise<LockAnswer | undefined> {
    this.#waitMarkMs = waitMarkMs
    const triesBefore = this.tries
    const minUntil = performance.now() + MIN_TRYING_MS
    const isRetryable = (error: unknown): boolean => {
      const now = performance.now()
      const isTried = this.tries - triesBefore >= MIN_TRIES || now >= minUntil || this.#isPoolFull
      if (isTried && now >= this.#until) return false // guard: lock.answer-lost
      return isPassing(error)
    }
    const policy = { isRetryable, baseMs: 20, maxMs: 500, signal: this.#signal }
    try {
      return await retry(this.#sendOnce, policy)
    } catch (error) {
      this.#releaseOrphan()
      if (this.#signal.aborted) return undefined
      throw error
    }
  }

  readonly #sendOnce = async (): Promise<LockAnswer> => {
    this.tries++
    const { name, permits } = this.#spec
    const values = [name, permits, this.holder, this.#leaseMs, this.#waitMarkMs].map(String)
    const signal = this.#signal
    const { database } = this.#context
    const { isFull } = database
    let sentAt: number | undefined
    const sending = database.send(acquireLock, values, {
      deadlineMs: ANSWER_MS,
      // A connection that is being made may take longer than `waitMs`.
      connectMs: isFull ? Math.max(MIN_CLIENT_MS, this.#until - performance.now()) : CONNECT_MS, // guard: lock.connect-bound
      duringClose: true,
      onClient: () => {
        signal.throwIfAborted()
        // The lease starts here, and not while this call waited for a connection.
        sentAt = performance.now()
      },
    })
    try {
      const [row] = await unlessAborted(sending, signal)
      signal.throwIfAborted()
      this.#mayHold = false
      return { result: JSON.parse(`${row?.result}`), sentAt: Number(sentAt) }
    } catch (error) {
      this.#mayHold ||= error instanceof CommitOutcomeUnknownError
      this.#isPoolFull = isFull && sentAt === undefined && error instanceof BusyError
      if (signal.aborted) this.#releaseLate(sending)
      throw error
    }
  }

  /** Releases a lock that the answer to an aborted request grants. */
  #releaseLate(sending: Promise<readonly { readonly result?: string | null }[]>): void {
    const released = sending.then(
      ([row]) => {
        const late: LockAnswer['result'] = JSON.parse(`${row?.result}`)
        return late.state === 'taken' ? releaseUnwantedLock(this.#context, this.#identity, late) : undefined // guard: lock.late-release
      },
      (error) => {
        this.#mayHold ||= error instanceof CommitOutcomeUnknownError
        this.#releaseOrphan()
      },
    )
    this.#context.database.finish(released.catch(() => {}))
  }

  #releaseOrphan(): void {
    if (!this.#mayHold) return
    this.#mayHold = false
    void releaseOrphanedLock(this.#context, this.#identity, this.#leaseMs)
  }

  get #identity(): { readonly name: string; readonly holder: string } {
    return { name: this.#spec.name, holder: this.holder }
  }
}
