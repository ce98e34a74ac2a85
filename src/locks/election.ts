import { setMaxListeners } from 'node:events'
import {
  BusyError,
  ClosedError,
  FenceLostError,
  GuardedError,
  InvalidInputError,
  type LossReason,
} from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import type { Executor, QueryResult, Row, Tx } from '../postgres/executor.js'
import { checkKey, keyOf, MAX_KEY_BYTES } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'
import { sleep } from '../postgres/sleep.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import type { FencedWrite } from './fenced-write.js'
import { checkLock, type GuardOptions, type Lock, type TookOver } from './lock.js'

const LEASE_MS = 15_000
const DRAIN_MS = 10_000
/** Those who are not elected may be so for days: they look as often as a leader renews, but not more often than those who wait for a lock. */
const MIN_POLL_MS = 500
const MAX_POLL_MS = 5_000
const MAX_REST_MS = 10_000
/** Its lock is called `leader:` and its name. */
const MAX_NAME_BYTES = MAX_KEY_BYTES - 'leader:'.length

/**
 * A time in which this process leads: from its election until `signal`.
 *
 * @example
 * const election = dibs.elect('scheduler', {
 *   onElected: async (term) => {
 *     while (!term.signal.aborted) await dibs.transaction(async (tx) => {
 *       await term.guard(tx)
 *       await tx.query('update tick set n = n + 1')
 *     })
 *   },
 * })
 */
export interface Term {
  /** A number that is higher for each leader after this one: the fence of what it writes elsewhere. */
  readonly epoch: number
  /** By the database's clock. */
  readonly electedAt: Date
  /** Set if the leader before has not resigned: what it has begun may be half done. */
  readonly tookOver: TookOver | undefined
  /** Fires when this process leads no more, before another may: with a `FenceLostError` that has the `reason`. */
  readonly signal: AbortSignal
  /** Throws a `FenceLostError` if this process leads no more, also while the signal is still on its way since it stood still. */
  assertLeading(): void
  /** Ties an open transaction to this term: once another leads it cannot commit, and until it has ended nobody else leads. */
  guard(tx: Tx, options?: GuardOptions): Promise<void>
  /** Writes a row of a store elsewhere, unless a later leader has written there before. */
  writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>>
}

export interface ElectOptions {
  /** How long a leader that is gone keeps others from being elected: 50 to 86,400,000. Default 15,000. */
  readonly leaseMs?: number | undefined
  /** What a leader does, once in each term. Should end when `term.signal` fires. If it throws, this process resigns, and another is elected. */
  readonly onElected?: ((term: Term) => unknown) | undefined
  /** Called after `term.signal` has fired. It keeps nobody from being elected; this process stands again when it has ended, or after `drainMs`. */
  readonly onLost?: ((term: Term, reason: LossReason) => unknown) | undefined
  /** How long `stop` waits for `onElected` to end before it hands over, and for `onLost`, in all. Default 10,000. */
  readonly drainMs?: number | undefined
  /** Who it is, for others to see. Default: host and process. */
  readonly holder?: string | undefined
  /** Ends it, as `stop` does. */
  readonly signal?: AbortSignal | undefined
}

const names: readonly (keyof ElectOptions)[] = [
  ...(['leaseMs', 'onElected', 'onLost', 'drainMs', 'holder', 'signal'] as const),
]

/** How a lock is had: waits until it is given, or `signal`. */
export type Take = (spec: ReturnType<typeof checkLock>) => Promise<Lock>

/**
 * A candidacy of this process: whenever nobody leads, one of the candidates is elected.
 *
 * @example
 * await using election = dibs.elect('scheduler', { leaseMs: 15_000 })
 * if (election.isLeader) console.log('we lead, in epoch', election.term?.epoch)
 */
export class Election implements AsyncDisposable {
  readonly name: string
  readonly #database: Database
  readonly #take: Take
  readonly #options: ElectOptions
  readonly #drainMs: number
  readonly #spec: ReturnType<typeof checkLock>
  readonly #stopping = new AbortController()
  /** Fires when `close` of its instance waits no longer. */
  readonly #closed: AbortSignal | undefined
  /** Until when what was begun is waited for, once it is to stop: by this process's monotonic clock. */
  #drainedAt = Number.POSITIVE_INFINITY
  /** Resolves when it is stopped, and what was begun has ended. */
  readonly ended: Promise<void>
  #term: OpenTerm | undefined

  constructor(database: Database, take: Take, name: string, options: ElectOptions, closed?: AbortSignal) {
    checkElect(name, options)
    const { leaseMs = LEASE_MS, drainMs = DRAIN_MS, holder, signal } = options
    this.name = name
    this.#database = database
    this.#take = take
    this.#options = options
    this.#closed = closed
    this.#drainMs = checkDuration('drainMs', drainMs, 0, MAX_TIMER_MS)
    const waits = { leaseMs, holder, waitMs: MAX_TIMER_MS, signal: this.#stopping.signal }
    const spec = checkLock(keyOf('leader', name), waits, true)
    this.#spec = { ...spec, pollMs: Math.min(MAX_POLL_MS, Math.max(MIN_POLL_MS, spec.leaseMs / 3)) }
    // Any number of them may share one; Node.js would warn of a leak.
    for (const shared of [signal, closed]) if (shared) setMaxListeners(0, shared)
    if (signal?.aborted) this.#stopping.abort()
    signal?.addEventListener('abort', this.#onAbort, { once: true })
    // A lock does not keep the process alive; a candidate and a leader do.
    const alive = setInterval(() => {}, MAX_TIMER_MS)
    this.ended = this.#campaign().finally(() => clearInterval(alive))
  }

  /** The term in which this process leads, undefined if it does not. */
  get term(): Term | undefined {
    return this.isLeader ? this.#term : undefined
  }

  /** It leads, as far as it can know: another may by the time you act on it, which a guarded write learns. */
  get isLeader(): boolean {
    return this.#term?.isLeading ?? false
  }

  /**
   * Is no candidate any more. A leader's `term.signal` fires; when `onElected` has ended, or after `drainMs`, it hands over, and another is elected: at once if it listens.
   *
   * @example
   * await election.stop() // another process may lead from now on
   */
  stop(): Promise<void> {
    this.#drainedAt = Math.min(this.#drainedAt, performance.now() + this.#drainMs)
    this.#stopping.abort()
    this.#options.signal?.removeEventListener('abort', this.#onAbort)
    return this.ended
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  readonly #onAbort = (): void => void this.stop()

  async #campaign(): Promise<void> {
    const { signal } = this.#stopping
    for (let failures = 0; !signal.aborted; ) {
      try {
        // In one piece: `close` waits until what was taken is given back.
        const isWell = await this.#database.work(async () => this.#lead(await this.#take(this.#spec)))
        failures = isWell ? 0 : failures + 1
      } catch (error) {
        if (signal.aborted || error instanceof ClosedError) return
        // No wait is longer than a timer can be: others have led for weeks.
        if (error instanceof BusyError || error instanceof GuardedError) continue
        this.#emitFailed(error)
        failures++
      }
      // Another is to be elected, or the server to come back.
      if (failures > 0)
        await sleep(fullJitterMs(failures, this.#spec.leaseMs / 3, MAX_REST_MS), signal).catch(() => {})
    }
  }

  /** From the election to the end of all that was begun: two terms of one process never overlap. Answers whether its work went well. */
  async #lead(lock: Lock): Promise<boolean> {
    if (this.#stopping.signal.aborted) {
      // It was stopped by who has heard that the lock was taken.
      await lock[Symbol.asyncDispose]()
      return true
    }
    const term = new OpenTerm(lock, this.name)
    this.#term = term
    const startedAt = performance.now()
    const origin = { ...this.#database.origin, election: this.name, epoch: term.epoch }
    const resign = (): void => term.end('resigned')
    this.#stopping.signal.addEventListener('abort', resign)
    emit('dibs:leader.elected', { ...origin, isTakeover: lock.tookOver !== undefined })
    // A term that is over by now is nobody's to begin with.
    const { onElected, onLost } = term.signal.aborted ? {} : this.#options
    let isWell = true
    const work = call(onElected, term).catch((error) => {
      if (isEndedBy(error, term)) return
      isWell = false
      this.#emitFailed(error)
      resign()
    })
    await term.ended
    this.#stopping.signal.removeEventListener('abort', resign)
    const { reason } = term
    emit('dibs:leader.lost', { ...origin, reason, ledMs: performance.now() - startedAt })
    const told = call(onLost, term, reason).catch((error) => this.#emitFailed(error))
    // As long as the work goes on, nobody else is to begin with it: a leader that resigns holds the lock until then. One that has lost it is no candidate meanwhile.
    await this.#drain(work)
    await lock[Symbol.asyncDispose]()
    this.#term = undefined
    await this.#drain(told, this.#drainMs)
    return isWell
  }

  /** Waits for `work`, but no longer than `mostMs`; nor than `drainMs` in all once it is to stop, nor for anything once its instance is closed. */
  async #drain(work: Promise<unknown>, mostMs = Number.POSITIVE_INFINITY): Promise<void> {
    const [stopping, closed] = [this.#stopping.signal, this.#closed]
    const mostAt = performance.now() + mostMs
    let timer: NodeJS.Timeout | undefined
    const over = new AbortController()
    const end = (): void => over.abort()
    const watch = (): void => {
      clearTimeout(timer)
      const endsAt = Math.min(mostAt, this.#drainedAt)
      if (endsAt < Number.POSITIVE_INFINITY) timer = setTimeout(end, Math.max(0, endsAt - performance.now()))
    }
    watch()
    stopping.addEventListener('abort', watch)
    closed?.addEventListener('abort', end)
    if (closed?.aborted) end()
    await unlessAborted(work, over.signal).catch(() => {}) // `work` never fails
    stopping.removeEventListener('abort', watch)
    closed?.removeEventListener('abort', end)
    clearTimeout(timer)
  }

  #emitFailed(error: unknown): void {
    emit('dibs:leader.failed', { ...this.#database.origin, election: this.name, error })
  }
}

/** A term that this process can end by itself, too. */
class OpenTerm implements Term {
  readonly epoch: number
  readonly electedAt: Date
  readonly tookOver: TookOver | undefined
  readonly #lock: Lock
  readonly #name: string
  readonly #controller = new AbortController()
  /** Resolves when it is over. */
  readonly ended: Promise<void>

  constructor(lock: Lock, name: string) {
    this.#lock = lock
    this.#name = name
    this.epoch = lock.fence
    this.electedAt = lock.acquiredAt
    this.tookOver = lock.tookOver
    const lose = (): void => this.#controller.abort(lock.signal.reason)
    lock.signal.addEventListener('abort', lose, { once: true })
    if (lock.signal.aborted) lose()
    this.ended = this.signal.aborted
      ? Promise.resolve()
      : new Promise((resolve) => this.signal.addEventListener('abort', () => resolve(), { once: true }))
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get reason(): LossReason {
    return this.signal.reason?.reason ?? 'stolen'
  }

  get isLeading(): boolean {
    try {
      this.assertLeading()
      return true
    } catch {
      return false
    }
  }

  end(reason: LossReason): void {
    this.#controller.abort(new FenceLostError(`leadership "${this.#name}"`, this.epoch, { reason }))
  }

  assertLeading(): void {
    this.signal.throwIfAborted()
    this.#lock.assertHeld()
  }

  guard(tx: Tx, options?: GuardOptions): Promise<void> {
    return this.#lock.guard(tx, options)
  }

  writeFenced<R extends object = Row>(store: Executor, write: FencedWrite): Promise<QueryResult<R>> {
    return this.#lock.writeFenced<R>(store, write)
  }
}

/** What it was told to stop with is no failure, nor is what timers and streams make of that; nor that a write was refused which came after its term. */
function isEndedBy(error: unknown, { signal, epoch }: Term): boolean {
  if (!signal.aborted) return false
  const causes = [error, error instanceof Error ? error.cause : undefined]
  return causes.some((one) => one === signal.reason || (one instanceof FenceLostError && one.fence === epoch))
}

/** Also what is thrown before the first await. */
async function call<A extends unknown[]>(
  fn: ((...args: A) => unknown) | undefined,
  ...args: A
): Promise<void> {
  await fn?.(...args)
}

function checkElect(name: string, options: ElectOptions): void {
  checkKey('name', name)
  const bytes = Buffer.byteLength(name.replaceAll(/[%:]/g, '%25'))
  if (bytes > MAX_NAME_BYTES)
    throw new InvalidInputError(
      'name',
      `must be at most ${MAX_NAME_BYTES} bytes long, where each : and % counts as three, and is ${bytes}; hash it`,
    )
  checkOptions(options, names)
  for (const option of ['onElected', 'onLost'] as const) {
    const fn = options[option]
    if (fn !== undefined) checkFunction(option, fn)
  }
  if (options.signal !== undefined && !(options.signal instanceof AbortSignal))
    throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(options.signal)}`)
}
