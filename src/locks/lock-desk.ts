import { setMaxListeners } from 'node:events'
import { ClosedError } from '../errors.js'
import { checkFunction } from '../postgres/check-function.js'
import type { Database } from '../postgres/database.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { HeldLock, type LockParts } from './held-lock.js'
import { checkLock, type Lock, type LockOptions, type LockSpec, type TryLockOptions } from './lock.js'
import { LockKeeper } from './lock-keeper.js'
import { LockQueue } from './lock-queue.js'
import { LockCall } from './take-lock.js'

/** The type of `dibs.withLock`. */
export interface WithLock {
  <T>(name: string, fn: (lock: Lock) => Promise<T>): Promise<T>
  <T>(name: string, options: LockOptions | undefined, fn: (lock: Lock) => Promise<T>): Promise<T>
}

/** Acquires the locks of one instance. */
export class LockDesk {
  readonly parts: LockParts
  readonly #queue = new LockQueue()
  /** Calls that wait for a lock. */
  readonly #waiting = new Set<AbortController>()

  constructor(database: Database, wakeups: Wakeups) {
    this.parts = { database, wakeups, keeper: new LockKeeper(database) }
  }

  async lock(name: string, options: LockOptions = {}): Promise<Lock> {
    return this.await(checkLock(name, options, true))
  }

  /** Waits for a lock with a spec that is already checked. Elections use this with a long `pollMs`, because a candidate may wait for days. */
  async await(spec: LockSpec): Promise<HeldLock> {
    return await this.parts.database.work(() => this.#wait(spec))
  }

  async tryLock(name: string, options: TryLockOptions = {}): Promise<Lock | null> {
    const call = new LockCall(this.parts, checkLock(name, options, false))
    return (await this.parts.database.work(() => call.try())) ?? null
  }

  readonly withLock: WithLock = async <T>(
    name: string,
    ...rest: [(lock: Lock) => Promise<T>] | [LockOptions | undefined, (lock: Lock) => Promise<T>]
  ): Promise<T> => {
    const [options = {}, fn] = rest.length === 1 ? [{}, rest[0]] : rest
    checkFunction('fn', fn)
    const spec = checkLock(name, options, true)
    // `close` waits for `fn`, and the lock is renewed until then.
    return await this.parts.database.work(async () => runUnder(await this.#wait(spec), fn))
  }

  async #wait(spec: LockSpec): Promise<HeldLock> {
    const ending = new AbortController()
    const end = (): void => ending.abort(spec.signal?.reason)
    // Any number of calls may share a signal. Without this, Node.js warns of a leak.
    if (spec.signal) setMaxListeners(0, spec.signal)
    if (spec.signal?.aborted) end()
    spec.signal?.addEventListener('abort', end)
    this.#waiting.add(ending)
    try {
      return await new LockCall(this.parts, { ...spec, signal: ending.signal }).wait(this.#queue)
    } finally {
      this.#waiting.delete(ending)
      spec.signal?.removeEventListener('abort', end)
    }
  }

  /** Ends all waits with a `ClosedError`. */
  stopWaiting(): void {
    for (const ending of this.#waiting) ending.abort(new ClosedError())
  }

  /** Stops all renewals. A caller that still holds a lock learns that the lock is lost. */
  close(): void {
    for (const lock of this.parts.keeper.held) if (lock instanceof HeldLock) lock.close()
  }
}

async function runUnder<T>(lock: HeldLock, fn: (lock: Lock) => Promise<T>): Promise<T> {
  let value: T
  try {
    value = await fn(lock)
  } catch (error) {
    await lock[Symbol.asyncDispose]()
    throw error
  }
  await lock[Symbol.asyncDispose]()
  // Another holder may have done the same work meanwhile, so results of unguarded work cannot be trusted.
  lock.signal.throwIfAborted()
  return value
}
