import type { Wakeups } from '../postgres/wakeups.js'

/**
 * Receives the notifications of a topic from its construction on, also while nobody waits. A caller that creates it before a poll, and waits after the poll,
 * misses none.
 */
export class WakeupWaiter {
  /** Ends the subscription. */
  readonly unsubscribe: () => void
  #isNotified = false
  #wake: (() => void) | undefined

  constructor(wakeups: Wakeups, topic: string) {
    this.unsubscribe = wakeups.subscribe(topic, () => {
      this.#isNotified = true
      this.#wake?.() // guard: lock.wakeup-heard
    })
  }

  /** Forgets the notifications that have come so far. */
  clear(): void {
    this.#isNotified = false
  }

  /** Ends the current wait, as a notification would. Does not affect a later wait. */
  interrupt(): void {
    this.#wake?.()
  }

  /** Resolves at a notification, which may have come before; after `ms`; or when `signal` fires. */
  async wait(ms: number, signal?: AbortSignal): Promise<void> {
    if (this.#isNotified || signal?.aborted) return
    await new Promise<void>((resolve) => {
      const finish = (): void => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', finish)
        this.#wake = undefined
        resolve()
      }
      const timer = setTimeout(finish, ms)
      signal?.addEventListener('abort', finish)
      this.#wake = finish
    })
  }
}
