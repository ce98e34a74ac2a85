import {
  BusyError,
  ConflictError,
  DatabaseError,
  FenceLostError,
  GuardedError,
  type LossReason,
  StatementTimeoutError,
} from '../errors.js'
import type { Database } from '../postgres/database.js'
import { type DibsEventName, type DibsEvents, emit, type LockOrigin } from '../postgres/events.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import { joinTransaction } from '../postgres/join.js'
import { sendSurely } from '../postgres/send-surely.js'
import type { TextValue } from '../postgres/text-values.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { type FencedWrite, writeFenced } from './fenced-write.js'
import { keepListening } from './keep-listening.js'
import type { Lock, LockSpec, TookOver } from './lock.js'
import type { Kept, LockKeeper } from './lock-keeper.js'
import { originOf, topicOf } from './lock-origin.js'
import { giveLockBack, guardByLock, isLockHeld } from './lock-statements.js'

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

/** How long a release waits for a transaction that is guarded, and a guard for somebody who is about to take over. */
const WAIT_MS = 5_000

const dateOf = (micros: number): Date => new Date(micros / 1000)

export class HeldLock implements Lock, Kept {
  readonly name: string
  readonly permit: number
  readonly fence: number
  readonly holder: string
  readonly acquiredAt: Date
  readonly tookOver: TookOver | undefined
  readonly ttlMs: number
  renewAt: number
  readonly #parts: LockParts
  readonly #controller = new AbortController()
  readonly #sinceAt: number
  /** When it was held for as long as was asked for, and when it has run out unless it is renewed; by this process's monotonic clock. */
  readonly #maxAt: number
  #deadlineAt: number
  #timer: NodeJS.Timeout | undefined
  /** A renewal has no answer, or failed. */
  #isUnanswered = false
  #state: 'held' | 'released' | 'lost' = 'held'
  #releasing: Promise<'released' | 'lost'> | undefined

  /** @param sentAt when the statement was sent that took it, by `performance.now()` */
  constructor(parts: LockParts, spec: LockSpec, told: ToldLock, sentAt: number) {
    this.name = spec.name
    this.permit = told.permit
    this.fence = told.fence
    this.holder = told.holder
    this.acquiredAt = dateOf(told.acquiredAt)
    this.tookOver = told.from
      ? { from: told.from.holder, fence: told.from.fence, expiredAt: dateOf(told.from.expiredAt) }
      : undefined
    this.ttlMs = spec.ttlMs
    this.#parts = parts
    this.#sinceAt = sentAt
    this.#maxAt = sentAt + spec.maxHoldMs
    this.#deadlineAt = sentAt + told.leftMs * SHARE
    this.renewAt = sentAt + Math.min(told.leftMs, spec.ttlMs) / 3
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

  async guard(tx: Tx): Promise<void> {
    const { database } = this.#parts
    const session = await joinTransaction(tx, database)
    this.#notice(performance.now())
    // What is known to be lost is said to the server as well: the transaction must not commit, whatever its caller does with the error.
    const fence = this.#state === 'held' ? String(this.fence) : null
    keepListening(tx)
    try {
      await session.send(database.render(guardByLock), [
        this.name,
        String(this.permit),
        fence,
        String(WAIT_MS),
      ])
    } catch (error) {
      throw await this.#judge(error)
    }
  }

  async writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>> {
    this.assertHeld()
    const result = await writeFenced(store, write, this.fence)
    if (result) return result as QueryResult<R>
    this.#emit('dibs:lock.fence-rejected', { fence: this.fence, where: 'store' })
    this.#lose('stolen')
    throw this.signal.reason ?? new FenceLostError(this.#subject, this.fence)
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

  askFor(now: number): number {
    this.#notice(now)
    return this.#state === 'held' ? Math.ceil(Math.min(this.ttlMs, this.#maxAt - now)) : 0
  }

  onSent(): void {
    this.renewAt = Number.POSITIVE_INFINITY
    this.#isUnanswered = true
  }

  onRenewed(sentAt: number, forMs: number): void {
    if (this.#state !== 'held') return
    this.#isUnanswered = false
    this.#deadlineAt = sentAt + forMs * SHARE
    this.renewAt = sentAt + this.ttlMs / 3
    this.#watch()
  }

  onUnanswered(): void {
    this.renewAt = performance.now() + this.ttlMs / 10
  }

  onStolen(): void {
    this.#lose('stolen')
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
    const endsAt = Math.min(this.#deadlineAt, this.#maxAt)
    this.#timer = setTimeout(
      () => {
        this.#notice(performance.now())
        if (this.#state === 'held') this.#watch() // a timer may be a little early
      },
      Math.ceil(Math.max(0, endsAt - performance.now())),
    )
  }

  /** Timers may be late: this process may have stood still. */
  #notice(now: number): void {
    if (now >= this.#maxAt) this.#lose('max hold')
    if (now < this.#deadlineAt) return
    const hasStoodStill = now - this.#deadlineAt > this.ttlMs / 10
    this.#lose(this.#isUnanswered && !hasStoodStill ? 'lost contact' : 'expired')
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
    // From now on it is not renewed. A renewal that is on its way names the fence, which the release raises.
    this.#stop('released')
    const values: TextValue[] = [
      this.name,
      String(this.permit),
      this.holder,
      String(this.fence),
      String(WAIT_MS),
    ]
    const [row] = await sendSurely(this.#parts, giveLockBack, () => values)
    const { state, isWanted }: { state: string; isWanted?: boolean } = JSON.parse(`${row?.told}`)
    if (state === 'guarded') throw new GuardedError(this.name, WAIT_MS, WAIT_MS)
    if (state === 'lost') {
      this.#state = 'held'
      this.#lose('stolen')
      return 'lost'
    }
    if (isWanted) this.#parts.wakeups.hint(topicOf(this.name))
    this.#emit('dibs:lock.released', { fence: this.fence, heldMs: this.#heldMs })
    return 'released'
  }

  /** Why a transaction was not let through. */
  async #judge(error: unknown): Promise<unknown> {
    const reason = await this.#reasonOf(error)
    if (reason === undefined) {
      const hasWaited = error instanceof StatementTimeoutError && error.sqlState === '55P03'
      return hasWaited ? new BusyError(`the row of ${this.#subject}`, WAIT_MS, 100, { cause: error }) : error
    }
    this.#emit('dibs:lock.fence-rejected', { fence: this.fence, where: 'guard' })
    this.#lose(reason)
    return this.signal.reason ?? new FenceLostError(this.#subject, this.fence, { reason, cause: error })
  }

  async #reasonOf(error: unknown): Promise<LossReason | undefined> {
    if (error instanceof DatabaseError && error.sqlState === 'DIB03')
      return error.message.includes('expired') ? 'expired' : 'stolen'
    if (!(error instanceof ConflictError)) return undefined
    // A transaction that sees the past cannot tell. Outside of it that is known, and then it need not be run again.
    try {
      const values = [this.name, String(this.permit), String(this.fence)]
      const [row] = await this.#parts.database.sendPart(isLockHeld, values, WAIT_MS)
      if (row === undefined) return 'stolen'
      return row.isLive === 'false' ? 'expired' : undefined
    } catch {
      return undefined
    }
  }
}
