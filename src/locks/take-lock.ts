import { randomUUID } from 'node:crypto'
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
import { readHeld, THIS_PROCESS } from '../postgres/this-process.js'
import { unlessAborted, withTimeout } from '../postgres/with-timeout.js'
import { Bell } from './bell.js'
import { type Asker, giveBackUnseen, giveBackUnwanted } from './give-back-unseen.js'
import { HeldLock, type LockParts, type ToldLock } from './held-lock.js'
import type { LockSpec } from './lock.js'
import { originOf, topicOf } from './lock-origin.js'
import type { LockQueue } from './lock-queue.js'
import { acquireLock } from './lock-statements.js'
import { POLL_MS, pauseMs, type Refusal, wantedMs } from './look-again.js'

type Taken = ToldLock & { readonly state: 'taken' }

interface Answer {
  readonly told: Refusal | Taken
  /** By `performance.now()`. */
  readonly sentAt: number
}

/** The server may be back, and a connection free, before the time is over. */
const passing = [CommitOutcomeUnknownError, ConnectionLostError, BusyError]

/** It never waits on the server: a longer silence is that of the network. */
const ANSWER_MS = 5_000

/** A server that is away, or has no room, is tried so often, and no longer than that, also by whoever was not to wait. */
const MIN_TRIES = 5
const MIN_TRYING_MS = 2_000

/** So long a client of the pool is waited for also by whoever was not to wait: statements of others are short. */
const MIN_CLIENT_MS = 1_000

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
  #isContended = false
  /** It may have been given, and nobody was told. */
  #mayHold = false
  /** Others had all of the pool for as long as this call waits. */
  #noClient: BusyError | undefined

  constructor(parts: LockParts, spec: LockSpec) {
    this.#parts = parts
    this.#spec = spec
    this.#holder = `${spec.holder ?? THIS_PROCESS}/${randomUUID()}`
    this.#until = this.#startedAt + spec.waitMs
  }

  /** The lock, or undefined if another has it. */
  async try(): Promise<HeldLock | undefined> {
    const lock = await this.#ask(0)
    if (!lock) this.#emitTimedOut(0)
    return lock
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
    const leave = await queue.enter(name, waitMs, signal, () => this.#contend('held'))
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
        const lock = await this.#ask(wantedMs(this.#spec.pollMs))
        if (lock) return lock
        const leftMs = this.#until - performance.now()
        if (leftMs <= 0 || signal?.aborted) return undefined
        this.#contend(this.#refusal?.state ?? 'busy')
        await bell.wait(
          Math.min(leftMs, pauseMs(this.#refusal, turn, this.#busyLooks, this.#spec.pollMs)),
          signal,
        )
        if (signal?.aborted) return undefined
      }
    } finally {
      bell.stop()
    }
  }

  /** It waits, which is told once. */
  #contend(state: Refusal['state']): void {
    if (this.#isContended) return
    this.#isContended = true
    emit('dibs:lock.contended', { ...this.#origin, state })
  }

  async #ask(wantedMs: number): Promise<HeldLock | undefined> {
    const { name, permits, leaseMs, maxHoldMs, signal } = this.#spec
    const values = [
      name,
      String(permits),
      this.#holder,
      String(Math.min(leaseMs, maxHoldMs)),
      String(wantedMs),
    ]
    const startedAt = performance.now()
    for (let failures = 1; ; failures++) {
      this.#tries++
      try {
        const answer = await this.#send(values)
        if (answer === undefined) return undefined
        const { told, sentAt } = answer
        this.#mayHold = false
        if (told.state === 'taken') return this.#hold(told, sentAt)
        this.#refusal = told
        this.#busyLooks = told.state === 'busy' ? this.#busyLooks + 1 : 0
        return undefined
      } catch (error) {
        this.#mayHold ||= error instanceof CommitOutcomeUnknownError
        if (signal?.aborted) {
          this.#recall()
          return undefined
        }
        const mayHelp = passing.some((type) => error instanceof type)
        const failedAt = performance.now()
        const isTried =
          failures >= MIN_TRIES || failedAt - startedAt >= MIN_TRYING_MS || error === this.#noClient
        if (!mayHelp || (isTried && failedAt >= this.#until)) {
          this.#recall()
          throw error
        }
        await sleep(fullJitterMs(failures, 20, 500), signal).catch(() => {})
      }
    }
  }

  /** Undefined: nobody wants it any more, and what may come of it is given back. */
  async #send(values: readonly string[]): Promise<Answer | undefined> {
    const { signal } = this.#spec
    const asking = this.#askInTime(values)
    const answer = await unlessAborted(asking, signal).catch((error) => {
      if (!signal?.aborted) throw error
      return undefined
    })
    if (!signal?.aborted) return answer
    const given = asking.then(
      ({ told: late }) => (late.state === 'taken' ? this.#giveBack(late) : undefined),
      (error) => {
        this.#mayHold ||= error instanceof CommitOutcomeUnknownError
        this.#recall()
      },
    )
    this.#parts.database.finish(given.then(() => {}).catch(() => {}))
    return undefined
  }

  /** Waits for a client of the pool for as long as there is time, and not much longer; what is sent then has the time that it needs. */
  async #askInTime(values: readonly string[]): Promise<Answer> {
    const { database } = this.#parts
    const startedAt = performance.now()
    let sentAt: number | undefined
    let isLate = false
    const clientMs = Math.max(MIN_CLIENT_MS, this.#until - startedAt)
    const asking = database.sendPart(acquireLock, values, ANSWER_MS, () => {
      if (isLate) throw this.#noClient
      this.#spec.signal?.throwIfAborted()
      // The lease lasts from here on: not while others had the pool.
      sentAt = performance.now()
    })
    const [row] = await withTimeout(asking, clientMs, () => {
      // The statement was sent, or the pool is just opening a connection for it.
      if (sentAt !== undefined || database.pool.waitingCount === 0) return asking
      isLate = true
      this.#noClient = database.busy(performance.now() - startedAt)
      throw this.#noClient
    })
    return { told: JSON.parse(`${row?.told}`), sentAt: sentAt ?? startedAt }
  }

  /** See giveBackUnseen. */
  #recall(): void {
    if (!this.#mayHold) return
    this.#mayHold = false
    const { leaseMs, maxHoldMs } = this.#spec
    void giveBackUnseen(this.#parts, this.#asker, Math.min(leaseMs, maxHoldMs)).catch(() => {})
  }

  #hold(told: ToldLock, sentAt: number): HeldLock {
    const lock = new HeldLock(this.#parts, this.#spec, told, sentAt)
    const waitedMs = performance.now() - this.#startedAt
    emit('dibs:lock.acquired', { ...this.#origin, fence: lock.fence, waitedMs, tries: this.#tries })
    if (lock.tookOver) {
      const idleMs = lock.acquiredAt.getTime() - lock.tookOver.leaseUntil.getTime()
      emit('dibs:lock.stolen', { ...this.#origin, how: 'takeover', fromFence: lock.tookOver.fence, idleMs })
    }
    return lock
  }

  get #asker(): Asker {
    return { name: this.#spec.name, holder: this.#holder }
  }

  #giveBack(late: ToldLock): Promise<boolean> {
    return giveBackUnwanted(this.#parts, this.#asker, late)
  }

  #refuse(name: string): BusyError | GuardedError {
    const waitedMs = this.#spec.waitMs === 0 ? 0 : performance.now() - this.#startedAt
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

  #emitTimedOut(waitedMs: number): void {
    emit('dibs:lock.timed-out', { ...this.#origin, waitedMs, tries: this.#tries })
  }

  get #origin() {
    return originOf(this.#parts.database, this.#spec.name)
  }
}
