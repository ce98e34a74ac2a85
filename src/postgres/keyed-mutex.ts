import { withTimeout } from './with-timeout.js'

/**
 * Passes the key on to the next waiting call. `admitAll`: the key needs no mutual exclusion any more, and all waiting
 * calls go on at once.
 */
export type ReleaseKey = (admitAll?: boolean) => void

type Waiter = (release: ReleaseKey) => void

const alreadyReleased: ReleaseKey = () => {}

/**
 * A mutex per key, within this process. Calls get a key in the order in which they came. A call that waits here needs no connection of the pool,
 * unlike one that waits for a row.
 */
export class KeyedMutex {
  readonly #queues = new Map<string, Set<Waiter>>()

  isLocked(key: string): boolean {
    return this.#queues.has(key)
  }

  /** @returns undefined if the call did not get the key within `waitMs`, or if `signal` fired first */
  async acquire(key: string, waitMs: number, signal?: AbortSignal): Promise<ReleaseKey | undefined> {
    if (signal?.aborted) return undefined
    const queue = this.#queues.get(key)
    // guard: batch.key-turns
    if (queue) return await waitIn(queue, waitMs, signal)
    this.#queues.set(key, new Set())
    return (admitAll) => this.#release(key, admitAll)
  }

  #release(key: string, admitAll = false): void {
    const queue = this.#queues.get(key)
    const [next] = queue ?? []
    if (queue && next && !admitAll) {
      queue.delete(next)
      next((all) => this.#release(key, all))
    } else {
      this.#queues.delete(key)
      for (const admit of queue ?? []) admit(alreadyReleased)
    }
  }
}

function waitIn(
  queue: Set<Waiter>,
  waitMs: number,
  signal: AbortSignal | undefined,
): Promise<ReleaseKey | undefined> {
  let waiter: Waiter = () => {}
  const admitted = new Promise<ReleaseKey>((resolve) => {
    waiter = resolve
  })
  queue.add(waiter)
  // A waiter that is not in the queue any more was admitted at the last moment, and has the key.
  const leave = (): Promise<ReleaseKey> | undefined => (queue.delete(waiter) ? undefined : admitted)
  return withTimeout(admitted, waitMs, leave, signal).catch(leave)
}

const mutexes = new WeakMap<object, KeyedMutex>()

/** The mutex that all calls for this owner share. The owner is the database of an instance. */
export function keyedMutexOf(owner: object): KeyedMutex {
  const mutex = mutexes.get(owner) ?? new KeyedMutex()
  mutexes.set(owner, mutex)
  return mutex
}
