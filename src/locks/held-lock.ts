import { setMaxListeners } from 'node:events'
import {
  BusyError,
  ConflictError,
  DatabaseError,
  DibsError,
  FenceLostError,
  InvalidInputError,
  type LossReason,
} from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { type DibsEventName, type DibsEvents, emit, type LockOrigin } from '../postgres/events.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { joinTransaction } from '../postgres/join.js'
import { nameGiven } from '../postgres/name-given.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import { sendEitherWay } from '../postgres/reserved-line.js'
import type { Session } from '../postgres/session.js'
import { sleep } from '../postgres/sleep.js'
import { nameHolder } from '../postgres/this-process.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { type FencedWrite, writeFenced } from './fenced-write.js'
import { keepListening } from './keep-listening.js'
import type { GuardOptions, Lock, LockSpec, TookOver } from './lock.js'
import type { Kept, LockKeeper } from './lock-keeper.js'
import { originOf, topicOf } from './lock-origin.js'
import { giveLockBack, guardByLock, lookAtLock } from './lock-statements.js'

/** What the locks of an instance share. */
export interface LockParts {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly keeper: LockKeeper
}

/** What `lock_acquire` says of a lock that it gave. */
export interface ToldLock {
  readonly permit: number
  readonly holder: string
  readonly fence: number
  readonly acquiredAt: number
  readonly leftMs: number
  readonly from: { readonly holder: string; readonly fence: number; readonly expiredAt: number } | null
}

/** Its holder counts itself out a little early: two clocks do not go at the same rate. */
const SHARE = 0.99

/** How long a release and a guard wait for somebody who has the row: one who is about to take over, or to renew. */
const WAIT_MS = 5_000

/** How long a release is tried in all, at the most and at the least. */
const RELEASE_MS = 10_000
const MIN_RELEASE_MS = 1_000

/** What is wrong with a transaction that cannot be guarded, by SQLSTATE. */
const UNFIT: Readonly<Record<string, string>> = {
  '3F000': 'is of another database, which has not the schema of this instance',
  '25006': 'is READ ONLY (it must be READ WRITE, on a primary)',
}

/** How long the pool is given before the connection for renewals is asked, how long that may take, and wait for the row. */
const AFTER_MS = 100
const LINE_MS = 1_000
const LINE_WAIT_MS = 50

const dateOf = (micros: number): Date => new Date(micros / 1000)

export class HeldLock implements Lock, Kept {
  readonly name: string
  readonly permit: number
  readonly fence: number
  readonly holder: string
  readonly acquiredAt: Date
  readonly tookOver: TookOver | undefined
  /** How long it may last without a renewal. */
  readonly leaseMs: number
  renewAt: number
  readonly #parts: LockParts
  readonly #controller = new AbortController()
  readonly #sinceAt: number
  /** When it was held for as long as was asked for, and when it has run out unless it is renewed; by this process's monotonic clock. */
  readonly #maxAt: number
  #deadlineAt: number
  /** It was to be renewed since it was last. */
  #isAsked = false
  /** It cannot be renewed any further: what ends it is that it was held for so long. */
  #isLast: boolean
  readonly #permits: number
  readonly #idleMs: number
  #timer: NodeJS.Timeout | undefined
  #state: 'held' | 'released' | 'lost' = 'held'
  #releasing: Promise<'released' | 'lost'> | undefined
  /** A release was sent, and there was no answer. */
  #mayBeFree = false
  // The same for each call: a transaction keeps each of them once.
  readonly #guardAgain = (outer: Session) => this.#guard(outer, true, true)
  readonly #guardAgainDeaf = (outer: Session) => this.#guard(outer, false, true)

  /** @param sentAt when the statement was sent that took it, by `performance.now()` */
  constructor(
    parts: LockParts,
    spec: Pick<LockSpec, 'name' | 'leaseMs' | 'maxHoldMs' | 'permits'>,
    told: ToldLock,
    sentAt: number,
  ) {
    this.name = spec.name
    this.permit = told.permit
    this.fence = told.fence
    this.holder = told.holder
    this.acquiredAt = dateOf(told.acquiredAt)
    this.tookOver = told.from
      ? {
          holder: nameHolder(told.from.holder),
          fence: told.from.fence,
          leaseUntil: dateOf(told.from.expiredAt),
        }
      : undefined
    this.leaseMs = Math.min(spec.leaseMs, spec.maxHoldMs)
    this.#idleMs = spec.leaseMs
    this.#parts = parts
    this.#sinceAt = sentAt
    this.#maxAt = sentAt + spec.maxHoldMs
    this.#deadlineAt = sentAt + told.leftMs * SHARE
    this.#isLast = spec.maxHoldMs <= spec.leaseMs
    this.#permits = spec.permits
    // Also if it cannot be put off any further: that it was taken away is learned in no other way.
    this.renewAt = sentAt + Math.min(told.leftMs, this.leaseMs) / 3
    setMaxListeners(0, this.signal) // any number of calls may be given it; Node.js would warn of a leak
    parts.keeper.add(this)
    this.#watch()
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  assertHeld(): void {
    this.#notice(performance.now())
    if (this.#state === 'lost') throw this.signal.reason
    if (this.#state === 'released') throw new FenceLostError(this.#subject, this.fence)
  }

  async guard(tx: Tx, options: GuardOptions = {}): Promise<void> {
    checkOptions(options, ['endsIdle'])
    const session = await joinTransaction(tx, this.#parts.database)
    const { endsIdle = !session.isDeaf } = options
    if (typeof endsIdle !== 'boolean')
      throw new InvalidInputError('endsIdle', `must be true or false, not ${nameGiven(endsIdle)}`)
    if (endsIdle) keepListening(tx)
    await this.#guard(session, endsIdle, false)
    session.repeatOutside?.(endsIdle ? this.#guardAgain : this.#guardAgainDeaf)
  }

  async writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>> {
    if (this.#permits > 1)
      throw new InvalidInputError(
        'write',
        `is for a lock that one holds at a time, and "${this.name}" has ${this.#permits} permits`,
      )
    this.assertHeld()
    const result = await writeFenced(store, write, this.fence)
    if (result) return result as QueryResult<R>
    this.#emit('dibs:lock.fence-rejected', { fence: this.fence, where: 'store' })
    const reason = await this.#askServer()
    if (reason !== 'held') this.#lose(reason ?? 'stolen')
    throw this.signal.reason ?? new FenceLostError(this.#subject, this.fence, { reason: 'stolen' })
  }

  release(): Promise<'released' | 'lost'> {
    this.#releasing ??= this.#release().catch((error) => {
      this.#releasing = undefined // it may be tried again
      throw error
    })
    return this.#releasing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release()
    } catch (error) {
      // The work is done, and nobody waits for longer than the lease lasts.
      this.#emit('dibs:lock.not-released', { fence: this.fence, error })
    }
  }

  /** Its instance is closed. */
  close(): void {
    this.#lose('closed')
  }

  /** It is given back by a statement that does more than that, and is not renewed from now on. */
  handOver(): void {
    if (this.#state === 'held') this.#stop('released')
  }

  askFor(now: number): number {
    // That it is over is for its own timer to notice: an answer may lie there that this process, which stood still, has not read.
    if (now >= this.endsAt) return 0
    this.#isAsked = true
    return Math.ceil(Math.min(this.leaseMs, this.#maxAt - now))
  }

  onRenewed(sentAt: number, forMs: number): void {
    // Of two that are on their way the earlier may be answered last.
    if (this.#state !== 'held' || sentAt + forMs * SHARE < this.#deadlineAt) return
    this.#deadlineAt = sentAt + forMs * SHARE
    this.#isLast = sentAt + forMs >= this.#maxAt
    this.#isAsked = false
    this.renewAt = sentAt + this.leaseMs / 3
    this.#watch()
  }

  onUnanswered(): void {
    this.renewAt = performance.now() + this.leaseMs / 30
  }

  onStolen(): void {
    this.#lose('stolen')
  }

  get endsAt(): number {
    return Math.min(this.#deadlineAt, this.#maxAt)
  }

  get #subject(): string {
    return `lock "${this.name}"`
  }

  get #origin(): LockOrigin {
    return originOf(this.#parts.database, this.name)
  }

  #emit<N extends DibsEventName>(name: N, payload: Omit<DibsEvents[N], keyof LockOrigin>): void {
    emit(name, { ...this.#origin, ...payload } as DibsEvents[N])
  }

  get #heldMs(): number {
    return performance.now() - this.#sinceAt
  }

  #watch(): void {
    clearTimeout(this.#timer)
    const look = (): void => {
      if (this.#state !== 'held') return
      this.#notice(performance.now())
      if (this.#state === 'held') this.#watch() // a timer may be a little early
    }
    // Timers come before what the server has said meanwhile is read: that it was renewed, if this process stood still.
    const lookAfterReading = (): unknown => setImmediate(look)
    const leftMs = Math.ceil(Math.max(0, this.endsAt - performance.now()))
    this.#timer = setTimeout(lookAfterReading, leftMs).unref()
  }

  /** Timers may be late: this process may have stood still. */
  #notice(now: number): void {
    if (now < this.endsAt) return
    if (this.#isLast || now >= this.#maxAt) this.#lose('max hold')
    // It was not even asked for, or it is noticed late.
    else if (!this.#isAsked || now - this.#deadlineAt > this.leaseMs / 10) this.#lose('expired')
    else this.#lose('lost contact')
  }

  #lose(reason: LossReason): void {
    if (this.#state !== 'held') return
    this.#stop('lost')
    this.#emit('dibs:lock.lost', { fence: this.fence, reason, heldMs: this.#heldMs })
    this.#controller.abort(new FenceLostError(this.#subject, this.fence, { reason }))
  }

  #stop(state: 'released' | 'lost'): void {
    this.#state = state
    clearTimeout(this.#timer)
    this.#parts.keeper.remove(this)
  }

  async #release(): Promise<'released' | 'lost'> {
    this.#notice(performance.now())
    if (this.#state === 'lost') return 'lost'
    // From now on it is not renewed. A renewal that is on its way finds it given back, and leaves it.
    this.#stop('released')
    const { state, isWanted } = await this.#giveBack()
    if (state === 'lost') {
      this.#state = 'held'
      this.#lose('stolen')
      return 'lost'
    }
    if (isWanted) this.#parts.wakeups.hint(topicOf(this.name))
    this.#emit('dibs:lock.released', { fence: this.fence, heldMs: this.#heldMs })
    return 'released'
  }

  /** Sent until there is an answer, but not for longer than it is worth: when the lease is over, it is free in any case. */
  async #giveBack(): Promise<{ readonly state: string; readonly isWanted?: boolean }> {
    const startedAt = performance.now()
    const until = startedAt + Math.min(RELEASE_MS, Math.max(MIN_RELEASE_MS, this.#deadlineAt - startedAt))
    for (let tries = 1; ; tries++) {
      const leftMs = Math.max(MIN_RELEASE_MS, until - performance.now())
      const waitMs = Math.ceil(Math.min(WAIT_MS, leftMs))
      const values = [this.name, String(this.permit), this.holder, String(this.fence)]
      try {
        const [row] = await sendEitherWay(this.#parts.database, giveLockBack, [...values, String(waitMs)], {
          withinMs: waitMs + 1_000,
          afterMs: AFTER_MS,
          lineMs: LINE_MS,
          overLine: [...values, String(LINE_WAIT_MS)],
          isFinal: ([said]) => JSON.parse(`${said?.told}`).state !== 'lost',
          onUnsure: () => {
            this.#mayBeFree = true
          },
        })
        const told = JSON.parse(`${row?.told}`)
        // It was held by its own clock when this was first sent, and whoever has it now may have had it from that.
        return this.#mayBeFree && told.state === 'lost' ? { state: 'released' } : told
      } catch (error) {
        const mayHelp = this.#mayBeFree || (error instanceof DibsError && error.retryable)
        if (!mayHelp || performance.now() >= until) throw this.#explainRelease(error, startedAt)
        await sleep(fullJitterMs(tries, 20, 500))
      }
    }
  }

  #explainRelease(error: unknown, startedAt: number): unknown {
    if (!hasWaitedInVain(error)) return error
    return new BusyError(`the row of ${this.#subject}, to give it back`, performance.now() - startedAt, 100, {
      cause: error,
    })
  }

  /** @param isAgain the transaction was guarded before: it goes on unless another has the lock by now, also if this one has given it back */
  async #guard(session: Session, endsIdle: boolean, isAgain: boolean): Promise<void> {
    const { database } = this.#parts
    this.#notice(performance.now())
    // What is known to be lost is said to the server as well: the transaction must not commit, whatever its caller does with the error.
    const fence = isAgain || this.#state === 'held' ? String(this.fence) : null
    const idleMs = endsIdle ? String(this.#idleMs) : null
    const values = [this.name, String(this.permit), fence, idleMs, String(WAIT_MS), String(isAgain)]
    try {
      await session.send(database.render(guardByLock), values)
    } catch (error) {
      const reason = await this.#judge(error)
      // Not even after a savepoint, in which this was, is rolled back.
      session.refuseCommit?.(reason)
      throw reason
    }
  }

  /** Why a transaction was not let through. */
  async #judge(error: unknown): Promise<unknown> {
    const isRefused = error instanceof DatabaseError && error.sqlState === 'DIB03'
    if (!isRefused && !(error instanceof ConflictError)) {
      const unfit = error instanceof DatabaseError && UNFIT[error.sqlState]
      if (unfit)
        return new InvalidInputError('tx', `${unfit}, and cannot be guarded by ${this.#subject}`, {
          cause: error,
        })
      return hasWaitedInVain(error)
        ? new BusyError(`the row of ${this.#subject}`, WAIT_MS, 100, { cause: error })
        : error
    }
    if (this.#state === 'held') {
      // A transaction that sees the past, or another database, cannot tell. Outside of it that is known.
      const reason = await this.#askServer()
      if (reason === 'held' && isRefused && error.message.includes('lost'))
        return new InvalidInputError(
          'tx',
          `is of another database than ${this.#subject}, and cannot be guarded by it`,
          { cause: error },
        )
      if (reason === 'held' || reason === undefined)
        return isRefused
          ? new ConflictError({ subject: this.#subject, reason: error.message, cause: error })
          : error
      this.#emit('dibs:lock.fence-rejected', { fence: this.fence, where: 'guard' })
      this.#lose(reason)
    } else this.#emit('dibs:lock.fence-rejected', { fence: this.fence, where: 'guard' })
    return this.signal.reason ?? new FenceLostError(this.#subject, this.fence, { cause: error })
  }

  /** How it stands outside of any transaction; undefined if that cannot be learned. */
  async #askServer(): Promise<LossReason | 'held' | undefined> {
    try {
      const values = [this.name, String(this.permit), String(this.fence)]
      // The transaction that asks may have the last client of the pool.
      const ways = { withinMs: WAIT_MS, afterMs: AFTER_MS, lineMs: LINE_MS }
      const [row] = await sendEitherWay(this.#parts.database, lookAtLock, values, ways)
      return (row?.state ?? 'stolen') as 'stolen' | 'held' | 'expired'
    } catch {
      return undefined
    }
  }
}

trackJoinedMethods(HeldLock, 'lock', { guard: 0 })
