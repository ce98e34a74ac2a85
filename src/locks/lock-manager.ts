import { setMaxListeners } from 'node:events'
import { ClosedError } from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import type { Database } from '../postgres/database.js'
import { KeyedMutex } from '../postgres/keyed-mutex.js'
import type { Wakeups } from '../postgres/wakeups.js'
import type { HeldLock } from './held-lock.js'
import { checkLock, type Lock, type LockOptions, type LockSpec, type TryLockOptions } from './lock.js'
import { LockAcquisition } from './lock-acquisition.js'
import type { LockContext } from './lock-context.js'
import { newLockRenewer } from './lock-renewer.js'

/** The type of `dibs.withLock`. */
export interface WithLock {
  <T>(name: string, fn: (lock: Lock) => Promise<T>): Promise<T>
  <T>(name: string, options: LockOptions | undefined, fn: (lock: Lock) => Promise<T>): Promise<T>
}

/**
 * Acquires the locks of one instance. A lock passes through these parts:
 *
 * 1. `checkLock` (`lock.ts`) checks the options of the call.
 * 2. `LockAcquisition` waits until the lock is free. Within this process, the calls for one name form a queue (`KeyedMutex`); the first of them polls,
 *    and waits for a notification between two polls (`wakeup-waiter.ts`).
 * 3. `LockRequest` sends `lock_acquire` (`sql/0016_lock_acquire.sql`), and sends it again after a lost answer. `orphaned-lock.ts` releases a lock that was
 *    granted without the caller's knowledge.
 * 4. `HeldLock` is the lock of the caller. It is a `Lease`: the renewer (`lock-renewer.ts`) renews all locks of the instance in one statement, until the
 *    lock is released or lost.
 * 5. `LockGuard` ties transactions to the lock (`lock.guard(tx)`). `LockRelease` releases the lock and notifies the calls that wait for it.
 *
 * `Election` (`election.ts`) holds a lock for as long as it leads; `fenced-write.ts` carries the fence to other tables; `locks.ts` is for operators.
 */
export class LockManager {
  readonly context: LockContext
  /** One call of this process at a time requests a lock from the server. */
  readonly #mutex = new KeyedMutex()
  readonly #closing = new AbortController()

  constructor(database: Database, wakeups: Wakeups) {
    this.context = { database, wakeups, renewer: newLockRenewer(database) }
    setMaxListeners(0, this.#closing.signal) // any number of calls may wait
  }

  async lock(name: string, options: LockOptions = {}): Promise<Lock> {
    const acquisition = this.#acquisition(checkLock(name, options, true))
    return await this.context.database.work(() => acquisition.wait(this.#mutex))
  }

  /** Waits for a lock with a spec that is already checked. Elections use this with a long `pollMs`, because a candidate may wait for days. */
  async lockBySpec(spec: LockSpec): Promise<HeldLock> {
    const acquisition = this.#acquisition(spec)
    return await this.context.database.work(() => acquisition.wait(this.#mutex))
  }

  async tryLock(name: string, options: TryLockOptions = {}): Promise<Lock | null> {
    const acquisition = this.#acquisition(checkLock(name, options, false))
    return (await this.context.database.work(() => acquisition.try())) ?? null
  }

  readonly withLock: WithLock = async <T>(
    name: string,
    ...rest: [(lock: Lock) => Promise<T>] | [LockOptions | undefined, (lock: Lock) => Promise<T>]
  ): Promise<T> => {
    const [options = {}, fn] = rest.length === 1 ? [{}, rest[0]] : rest
    checkFunction('fn', fn)
    const acquisition = this.#acquisition(checkLock(name, options, true))
    // `close` waits for `fn`, and the lock is renewed until then.
    return await this.context.database.work(async () => runUnder(await acquisition.wait(this.#mutex), fn))
  }

  #acquisition(spec: LockSpec): LockAcquisition {
    return new LockAcquisition(this.context, spec, this.#closing.signal)
  }

  /** Ends all waits with a `ClosedError`. */
  stopWaiting(): void {
    this.#closing.abort(new ClosedError())
  }

  /** Stops all renewals. A caller that still holds a lock learns that the lock is lost. */
  close(): void {
    for (const lock of this.context.renewer.leases) lock.lose('closed') // guard: lock.close-release
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
  lock.signal.throwIfAborted() // guard: lock.run-lost
  return value
}
