import { setMaxListeners } from 'node:events'
import { BusyError, GuardedError, LockHeldError } from '../errors.js'
import { emit } from '../postgres/events.js'
import type { KeyedMutex } from '../postgres/keyed-mutex.js'
import { readHeld } from '../postgres/this-process.js'
import { HeldLock } from './held-lock.js'
import type { LockSpec } from './lock.js'
import type { LockContext } from './lock-context.js'
import { lockOrigin, lockTopic } from './lock-notifications.js'
import { type LockAnswer, LockRequest } from './lock-request.js'
import { type LockRefusal, POLL_MS, pollDelayMs, waitMarkMs } from './poll-delay.js'
import { WakeupWaiter } from './wakeup-waiter.js'

/** One call that acquires a lock: waits until the lock is free, by polls and notifications. */
export class LockAcquisition {
  readonly #context: LockContext
  readonly #spec: LockSpec
  /** Ends the wait. */
  readonly #signal: AbortSignal
  readonly #unlink: (() => void) | undefined
  readonly #startedAt = performance.now()
  readonly #request: LockRequest
  /** Why the last poll did not get the lock. */
  #refusal: LockRefusal | undefined
  #busyPolls = 0
  #isContended = false

  /** @param closing fires when the instance is closed */
  constructor(context: LockContext, spec: LockSpec, closing: AbortSignal) {
    this.#context = context
    this.#spec = spec
    const linked = spec.signal && linkSignals(spec.signal, closing)
    this.#signal = linked?.signal ?? closing
    this.#unlink = linked?.unlink
    this.#request = new LockRequest(context, spec, this.#signal, this.#startedAt + spec.waitMs)
  }

  /** Acquires the lock without waiting for its holder. Undefined: another holds the lock. */
  async try(): Promise<HeldLock | undefined> {
    try {
      const lock = this.#read(await this.#request.send(0))
      if (lock) return lock
      this.#signal.throwIfAborted() // nobody knows whether another holds the lock
      this.#emitTimedOut(0)
      return undefined
    } finally {
      this.#unlink?.()
    }
  }

  /**
   * Waits for the lock, and throws when the time to wait is over.
   *
   * @param mutex lets one call of this process at a time request a lock
   */
  async wait(mutex: KeyedMutex): Promise<HeldLock> {
    const { name, waitMs, pollMs } = this.#spec
    const signal = this.#signal
    if (waitMs > 0 && mutex.isLocked(name)) this.#emitContended('held')
    const releaseMutex = waitMs > 0 ? await mutex.acquire(name, waitMs, signal) : undefined
    // With `waitMs: 0`, or when other calls of this process had the mutex for the whole wait: one request tells who holds the lock.
    const pollUntil = releaseMutex ? this.#startedAt + waitMs : 0
    const waiter = releaseMutex && new WakeupWaiter(this.#context.wakeups, lockTopic(name))
    try {
      for (let poll = 1; !signal.aborted; poll++) {
        waiter?.clear()
        const lock = this.#read(await this.#request.send(waiter ? waitMarkMs(pollMs) : 0))
        if (lock) return lock
        const leftMs = pollUntil - performance.now()
        if (leftMs <= 0 || signal.aborted) break // guard: lock.wait-bound
        this.#emitContended(this.#refusal?.state ?? 'busy')
        const delayMs = pollDelayMs(this.#refusal, poll, this.#busyPolls, pollMs)
        await waiter?.wait(Math.min(leftMs, delayMs), signal)
      }
    } finally {
      waiter?.unsubscribe()
      releaseMutex?.()
      this.#unlink?.()
    }
    signal.throwIfAborted()
    throw this.#refuse()
  }

  #read(answer: LockAnswer | undefined): HeldLock | undefined {
    if (!answer) return undefined
    const { result, sentAt } = answer
    if (result.state !== 'taken') {
      this.#refusal = result
      this.#busyPolls = result.state === 'busy' ? this.#busyPolls + 1 : 0
      return undefined
    }
    const lock = new HeldLock(this.#context, this.#spec, result, sentAt)
    const waitedMs = performance.now() - this.#startedAt
    const { tries } = this.#request
    emit('dibs:lock.acquired', { ...this.#origin, fence: lock.fence, waitedMs, tries })
    if (lock.tookOver) {
      const idleMs = lock.acquiredAt.getTime() - lock.tookOver.leaseUntil.getTime()
      emit('dibs:lock.stolen', { ...this.#origin, how: 'takeover', fromFence: lock.tookOver.fence, idleMs })
    }
    return lock
  }

  #refuse(): BusyError | GuardedError {
    const { name, waitMs } = this.#spec
    const waitedMs = waitMs === 0 ? 0 : performance.now() - this.#startedAt
    this.#emitTimedOut(waitedMs)
    const { state, leftMs } = this.#refusal ?? {}
    if (state === 'guarded') return new GuardedError(name, waitedMs, POLL_MS)
    const retryAfterMs = leftMs ?? 100
    const held = readHeld(this.#refusal ?? {})
    return new BusyError(`lock "${name}"`, waitedMs, retryAfterMs, {
      ...held,
      cause: new LockHeldError(name, retryAfterMs, held),
    })
  }

  /** Emits once that this call waits. */
  #emitContended(state: LockRefusal['state']): void {
    if (this.#isContended) return
    this.#isContended = true
    emit('dibs:lock.contended', { ...this.#origin, state })
  }

  #emitTimedOut(waitedMs: number): void {
    emit('dibs:lock.timed-out', { ...this.#origin, waitedMs, tries: this.#request.tries })
  }

  get #origin() {
    return lockOrigin(this.#context.database, this.#spec.name)
  }
}

/** A signal that fires with either of two, until it is unlinked. `AbortSignal.any` would keep each result in memory for as long as the sources live. */
function linkSignals(one: AbortSignal, other: AbortSignal): { signal: AbortSignal; unlink(): void } {
  setMaxListeners(0, one) // any number of calls may share a signal
  const linked = new AbortController()
  const sources = [one, other].map((source) => {
    const abort = (): void => linked.abort(source.reason)
    if (source.aborted) abort()
    source.addEventListener('abort', abort)
    return () => source.removeEventListener('abort', abort)
  })
  return {
    signal: linked.signal,
    unlink: () => {
      for (const remove of sources) remove()
    },
  }
}
