import { InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { HeldLock, type LockParts } from './held-lock.js'
import { checkLock, type Lock, type LockOptions, type TryLockOptions } from './lock.js'
import { LockKeeper } from './lock-keeper.js'
import { LockQueue } from './lock-queue.js'
import { LockCall } from './take-lock.js'

/** `dibs.withLock`. */
export interface WithLock {
  <T>(name: string, fn: (lock: Lock) => Promise<T>): Promise<T>
  <T>(name: string, options: LockOptions, fn: (lock: Lock) => Promise<T>): Promise<T>
}

/** Hands out the locks of one instance. */
export class LockDesk {
  readonly #parts: LockParts
  readonly #queue = new LockQueue()

  constructor(database: Database, wakeups: Wakeups) {
    this.#parts = { database, wakeups, keeper: new LockKeeper(database) }
  }

  async lock(name: string, options: LockOptions = {}): Promise<Lock> {
    const call = new LockCall(this.#parts, checkLock(name, options, true))
    return await this.#parts.database.work(() => call.wait(this.#queue))
  }

  async tryLock(name: string, options: TryLockOptions = {}): Promise<Lock | null> {
    const call = new LockCall(this.#parts, checkLock(name, options, false))
    return (await this.#parts.database.work(() => call.try())) ?? null
  }

  readonly withLock: WithLock = async <T>(
    name: string,
    ...rest: [(lock: Lock) => Promise<T>] | [LockOptions, (lock: Lock) => Promise<T>]
  ): Promise<T> => {
    const [options, fn] = rest.length === 1 ? [{}, rest[0]] : rest
    if (typeof fn !== 'function')
      throw new InvalidInputError('fn', `must be a function, not ${nameGiven(fn)}`)
    const call = new LockCall(this.#parts, checkLock(name, options, true))
    // What runs in here is waited for by `close`, and its lock is renewed until then.
    return await this.#parts.database.work(async () => runUnder(await call.wait(this.#queue), fn))
  }

  /** Nothing is renewed any more: whoever still holds a lock learns that it is given up. */
  close(): void {
    for (const lock of this.#parts.keeper.held) if (lock instanceof HeldLock) lock.close()
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
  // Others may have been at it at the same time: what was not guarded is not to be trusted.
  lock.signal.throwIfAborted()
  return value
}
