import type { Wakeups } from '../postgres/wakeups.js'

/**
 * Hears hints on a topic from now on, also those that come while nobody waits for one: whoever makes it before looking, and waits after
 * looking, misses none.
 */
export class Bell {
  /** Hears no more. */
  readonly stop: () => void
  #hasRung = false
  #wake: (() => void) | undefined

  constructor(wakeups: Wakeups, topic: string) {
    this.stop = wakeups.subscribe(topic, () => {
      this.#hasRung = true
      this.#wake?.()
    })
  }

  /** What has come so far is known. */
  forget(): void {
    this.#hasRung = false
  }

  /** Ends a wait that is under way, as a hint would, and no later one. */
  interrupt(): void {
    this.#wake?.()
  }

  /** Resolves at a hint, also one that came before; after `ms`; or when `signal` fires. */
  async wait(ms: number, signal?: AbortSignal): Promise<void> {
    if (this.#hasRung || signal?.aborted) return
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
