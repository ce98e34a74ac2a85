import { FenceLostError, InvalidInputError, type LossReason } from '../errors.js'
import { Lease } from '../leases/lease.js'
import { type DibsEventName, type DibsEvents, emit, type LockOrigin } from '../postgres/events.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import { nameHolder } from '../postgres/this-process.js'
import { type FencedWrite, writeFenced } from './fenced-write.js'
import type { GuardOptions, Lock, LockSpec, TookOver } from './lock.js'
import type { GrantedLock, LockContext } from './lock-context.js'
import { LockGuard } from './lock-guard.js'
import { lockOrigin } from './lock-notifications.js'
import { LockRelease } from './lock-release.js'

const dateOf = (micros: number): Date => new Date(micros / 1000)

/** A lock that this process holds, with its lease. */
export class HeldLock extends Lease implements Lock {
  readonly name: string
  readonly permit: number
  readonly fence: number
  readonly holder: string
  readonly acquiredAt: Date
  readonly tookOver: TookOver | undefined
  readonly #context: LockContext
  readonly #spec: Pick<LockSpec, 'leaseMs' | 'permits'>
  readonly #sentAt: number
  #guard: LockGuard | undefined
  #release: LockRelease | undefined
  #releasing: Promise<'released' | 'lost'> | undefined

  /** @param sentAt when the statement was sent that acquired the lock, by `performance.now()` */
  constructor(
    context: LockContext,
    spec: Pick<LockSpec, 'name' | 'leaseMs' | 'maxHoldMs' | 'permits'>,
    { permit, holder, fence, acquiredAt, leftMs, from }: GrantedLock,
    sentAt: number,
  ) {
    const { leaseMs, maxHoldMs } = spec
    super({ leaseMs: Math.min(leaseMs, maxHoldMs), maxHoldMs, leftMs, sentAt })
    this.name = spec.name
    this.permit = permit
    this.fence = fence
    this.holder = holder
    this.acquiredAt = dateOf(acquiredAt)
    this.tookOver = from
      ? { holder: nameHolder(from.holder), fence: from.fence, leaseUntil: dateOf(from.expiredAt) }
      : undefined
    this.#context = context
    this.#spec = spec
    this.#sentAt = sentAt
    context.renewer.add(this)
  }

  assertHeld(): void {
    this.checkDeadline() // guard: lock.check-deadline
    if (this.leaseState === 'lost') throw this.signal.reason
    if (this.leaseState === 'ended') throw new FenceLostError(this.#subject, this.fence)
  }

  async guard(tx: Tx, options: GuardOptions = {}): Promise<void> {
    await this.#ownGuard.guard(tx, options)
  }

  async writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>> {
    const { permits } = this.#spec
    if (permits > 1)
      throw new InvalidInputError(
        'write',
        `is for a lock that one holds at a time, and "${this.name}" has ${permits} permits`,
      )
    this.assertHeld()
    const result = await writeFenced(store, write, this.fence)
    if (!result) throw await this.#ownGuard.explainRefusedWrite()
    return result as QueryResult<R>
  }

  release(): Promise<'released' | 'lost'> {
    this.#releasing ??= this.#sendRelease().catch((error) => {
      this.#releasing = undefined // the caller may call `release` again
      throw error
    })
    return this.#releasing
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release()
    } catch (error) {
      // The work is done, and other callers wait no longer than the lease lasts.
      this.#emit('dibs:lock.not-released', { fence: this.fence, error })
    }
  }

  protected override onLost(reason: LossReason): Error {
    this.#emit('dibs:lock.lost', { fence: this.fence, reason, heldMs: performance.now() - this.#sentAt })
    return new FenceLostError(this.#subject, this.fence, { reason })
  }

  async #sendRelease(): Promise<'released' | 'lost'> {
    this.checkDeadline()
    if (this.leaseState === 'lost') return 'lost'
    // From now on the lock is not renewed: a late renewal would find the lock released, and count it as lost.
    this.stopRenewal()
    this.#release ??= new LockRelease(this.#context, this)
    const result = await this.#release.send(this.endsAt)
    if (result === 'lost') {
      this.leaseState = 'held'
      this.lose('stolen')
    } else this.#emit('dibs:lock.released', { fence: this.fence, heldMs: performance.now() - this.#sentAt })
    return result
  }

  get #ownGuard(): LockGuard {
    this.#guard ??= new LockGuard(this.#context.database, this, this.#spec.leaseMs)
    return this.#guard
  }

  get #subject(): string {
    return `lock "${this.name}"`
  }

  #emit<N extends DibsEventName>(name: N, payload: Omit<DibsEvents[N], keyof LockOrigin>): void {
    emit(name, { ...lockOrigin(this.#context.database, this.name), ...payload } as DibsEvents[N])
  }
}

trackJoinedMethods(HeldLock, 'lock', { guard: 0 })
