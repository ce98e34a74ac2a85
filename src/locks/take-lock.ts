import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import {
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  GuardedError,
  LockHeldError,
} from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { emit } from '../postgres/events.js'
import { sleep } from '../postgres/sleep.js'
import { Bell } from './bell.js'
import { HeldLock, type LockParts, type ToldLock } from './held-lock.js'
import type { LockSpec } from './lock.js'
import { originOf, topicOf } from './lock-origin.js'
import type { LockQueue } from './lock-queue.js'
import { acquireLock, giveLockBack } from './lock-statements.js'

/** What `lock_acquire` says of a lock that it did not give. */
interface Refusal {
  readonly state: 'held' | 'guarded' | 'busy'
  readonly holder?: string | null
  readonly leftMs?: number | null
}

type Taken = ToldLock & { readonly state: 'taken' }

/** The server may be back, and a connection free, before the time is over. */
const passing = [CommitOutcomeUnknownError, ConnectionLostError, BusyError]

/** Those who wait look again after so long at the latest: a hint may be lost, and holders that die send none. */
const POLL_MS = 500

/** For how long a lock is marked as waited for: half of it is left at the least, and that is longer than nobody looks. */
const WANTED_MS = 3 * POLL_MS

/** It never waits on the server: a longer silence is that of the network. */
const ANSWER_MS = 5_000

/** A server that is away, or has no room, is tried so often, and no longer than that, also by whoever was not to wait. */
const MIN_TRIES = 5
const MIN_TRYING_MS = 2_000

/** One call for a lock: all that it asks the server goes under one name, so that an answer that was lost can be had again. */
export class LockCall {
  readonly #parts: LockParts
  readonly #spec: LockSpec
  readonly #holder: string
  readonly #startedAt = performance.now()
  readonly #until: number
  #tries = 0
  #refusal: Refusal | undefined
  /** In how many looks in a row it was busy. */
  #busyLooks = 0

  constructor(parts: LockParts, spec: LockSpec) {
    this.#parts = parts
    this.#spec = spec
    this.#holder = `${spec.by ?? `${hostname()}:${process.pid}`}/${randomUUID()}`
    this.#until = this.#startedAt + spec.waitMs
  }

  /** The lock, or undefined if another has it. */
  async try(): Promise<HeldLock | undefined> {
    return await this.#ask(0)
  }

  /** The lock, once it is this one's turn; rejected when the time is over. */
  async wait(queue: LockQueue): Promise<HeldLock> {
    const { name, signal, waitMs } = this.#spec
    signal?.throwIfAborted()
    const lock = waitMs === 0 ? await this.#ask(0) : await this.#waitInTurn(queue)
    if (lock) return lock
    signal?.throwIfAborted()
    throw this.#refuse(name)
  }

  async #waitInTurn(queue: LockQueue): Promise<HeldLock | undefined> {
    const { name, waitMs, signal } = this.#spec
    const leave = await queue.enter(name, waitMs, signal)
    // Others of this process were before it all the time. One look, to say who has it.
    if (leave === undefined) return signal?.aborted ? undefined : await this.#ask(0)
    try {
      return await this.#waitForIt()
    } finally {
      leave()
    }
  }

  async #waitForIt(): Promise<HeldLock | undefined> {
    const { name, signal } = this.#spec
    const bell = new Bell(this.#parts.wakeups, topicOf(name))
    try {
      for (let turn = 1; ; turn++) {
        bell.forget()
        const lock = await this.#ask(WANTED_MS)
        if (lock) return lock
        const leftMs = this.#until - performance.now()
        if (leftMs <= 0 || signal?.aborted) return undefined
        if (turn === 1)
          emit('dibs:lock.contended', { ...this.#origin, state: this.#refusal?.state ?? 'busy' })
        await bell.wait(Math.min(leftMs, this.#pauseMs(turn)), signal)
        if (signal?.aborted) return undefined
      }
    } finally {
      bell.stop()
    }
  }

  /** Not all at once: those who wait for the same lease would all come at its end. */
  #pauseMs(turn: number): number {
    const { state, leftMs } = this.#refusal ?? {}
    if (state === 'busy')
      return Math.min(POLL_MS, (2 + Math.random() * 20) * 2 ** Math.max(0, this.#busyLooks - 3))
    const pollMs = state === 'guarded' ? POLL_MS / 10 : Math.min(POLL_MS, 50 * 2 ** Math.min(turn, 10))
    const jitteredMs = pollMs * (0.5 + Math.random() / 2)
    return leftMs ? Math.min(jitteredMs, leftMs + Math.random() * 5) : jitteredMs
  }

  async #ask(wantedMs: number): Promise<HeldLock | undefined> {
    const { name, permits, ttlMs, maxHoldMs, signal } = this.#spec
    const values = [name, String(permits), this.#holder, String(Math.min(ttlMs, maxHoldMs)), String(wantedMs)]
    const startedAt = performance.now()
    for (let failures = 1; ; failures++) {
      const sentAt = performance.now()
      this.#tries++
      try {
        const told = await this.#send(values)
        if (told === undefined) return undefined
        if (told.state === 'taken') return this.#hold(told, sentAt)
        this.#refusal = told
        this.#busyLooks = told.state === 'busy' ? this.#busyLooks + 1 : 0
        return undefined
      } catch (error) {
        if (signal?.aborted) return undefined
        const mayHelp = passing.some((type) => error instanceof type)
        const now = performance.now()
        const isTried = failures >= MIN_TRIES || now - startedAt >= MIN_TRYING_MS
        if (!mayHelp || (isTried && now >= this.#until)) throw error
        await sleep(fullJitterMs(failures, 20, 500), signal).catch(() => {})
      }
    }
  }

  /** Undefined: nobody wants it any more, and what may come of it is given back. */
  async #send(values: readonly string[]): Promise<Refusal | Taken | undefined> {
    const { signal } = this.#spec
    const asking = this.#parts.database.sendPart(acquireLock, values, ANSWER_MS).then(([row]) => {
      const told: Refusal | Taken = JSON.parse(`${row?.told}`)
      return told
    })
    const told = await untilAborted(asking, signal)
    if (!signal?.aborted) return told
    const given = asking.then((late) => (late.state === 'taken' ? this.#giveBack(late) : undefined))
    this.#parts.database.finish(given.catch(() => {}))
    return undefined
  }

  #hold(told: ToldLock, sentAt: number): HeldLock {
    const lock = new HeldLock(this.#parts, this.#spec, told, sentAt)
    const waitedMs = performance.now() - this.#startedAt
    emit('dibs:lock.acquired', { ...this.#origin, fence: lock.fence, waitedMs, tries: this.#tries })
    if (lock.tookOver) {
      const idleMs = lock.acquiredAt.getTime() - lock.tookOver.expiredAt.getTime()
      emit('dibs:lock.stolen', { ...this.#origin, by: 'takeover', fromFence: lock.tookOver.fence, idleMs })
    }
    return lock
  }

  /** Nobody wants it any more. If that cannot be said, its lease runs out. */
  async #giveBack({ permit, fence }: ToldLock): Promise<void> {
    const values = [this.#spec.name, String(permit), this.#holder, String(fence), '1000']
    const [row] = await this.#parts.database.sendPart(giveLockBack, values, ANSWER_MS).catch(() => [])
    if (row && JSON.parse(`${row.told}`).isWanted) this.#parts.wakeups.hint(topicOf(this.#spec.name))
  }

  #refuse(name: string): BusyError | GuardedError {
    const waitedMs = this.#spec.waitMs === 0 ? 0 : performance.now() - this.#startedAt
    emit('dibs:lock.timed-out', { ...this.#origin, waitedMs, tries: this.#tries })
    const { state, holder, leftMs } = this.#refusal ?? {}
    if (state === 'guarded') return new GuardedError(name, waitedMs, POLL_MS)
    const retryAfterMs = leftMs ?? 100
    return new BusyError(`lock "${name}"`, waitedMs, retryAfterMs, {
      cause: new LockHeldError(name, retryAfterMs, holder ?? undefined),
    })
  }

  get #origin() {
    return originOf(this.#parts.database, this.#spec.name)
  }
}

/** Resolves with it, or with nothing as soon as the signal fires. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T | undefined> {
  if (!signal) return await promise
  let end: (() => void) | undefined
  const aborted = new Promise<undefined>((resolve) => {
    end = () => resolve(undefined)
    signal.addEventListener('abort', end)
    if (signal.aborted) end()
  })
  try {
    return await Promise.race([promise, aborted])
  } finally {
    if (end) signal.removeEventListener('abort', end)
  }
}
