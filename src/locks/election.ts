import { setMaxListeners } from 'node:events'
import { BusyError, ClosedError, GuardedError, InvalidInputError, type LossReason } from '../errors.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration } from '../options/number-options.js'
import { optionTable } from '../options/option-table.js'
import { func } from '../options/value-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { checkKey, keyOf, MAX_KEY_BYTES } from '../postgres/key.js'
import { backoffMs } from '../postgres/retry.js'
import { sleep } from '../postgres/sleep.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import { checkLock, type Lock, lockOptions } from './lock.js'
import { OpenTerm, type Term } from './term.js'

/** Candidates may wait for days. Each polls as often as a leader renews its lease, within these bounds, and never more often than a waiting lock call. */
const MIN_POLL_MS = 500
const MAX_POLL_MS = 5_000
const MAX_REST_MS = 10_000
/** The lock of an election has the name `leader:` plus the name of the election. */
const MAX_NAME_BYTES = MAX_KEY_BYTES - 'leader:'.length

export interface ElectOptions {
  /** How long a leader that died delays the next election: 50 to 86,400,000. Default 15,000. */
  readonly leaseMs?: number | undefined
  /**
   * The work of a leader, called once in each term. Should end when `term.signal` fires. If `onElected` throws, this process resigns, and another candidate
   * is elected.
   */
  readonly onElected?: ((term: Term) => unknown) | undefined
  /** Called after `term.signal` has fired. Does not delay the next election. This process is a candidate again when `onLost` has ended, or after `drainMs`. */
  readonly onLost?: ((term: Term, reason: LossReason) => unknown) | undefined
  /** How long `stop` waits in total: for `onElected` to end before it hands over, and for `onLost`. Default 10,000. */
  readonly drainMs?: number | undefined
  /** Names this candidate for others to see. Default: host and process. */
  readonly holder?: string | undefined
  /** Ends the candidacy, as `stop` does. */
  readonly signal?: AbortSignal | undefined
}

export const electOptions = optionTable<ElectOptions>()('dibs.elect', {
  leaseMs: duration({ default: 15_000, min: 50, max: 24 * 3_600_000 }),
  onElected: func(),
  onLost: func(),
  drainMs: duration({ default: 10_000, min: 0, max: MAX_TIMER_MS }),
  holder: lockOptions.fields.holder,
  signal: lockOptions.fields.signal,
})

/** Acquires a lock: waits until it is free, or until `signal` fires. */
export type Take = (spec: ReturnType<typeof checkLock>) => Promise<Lock>

/**
 * A candidacy of this process. Whenever no process leads, one of the candidates is elected.
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
  /** Fires when `close` of the instance stops waiting. */
  readonly #closed: AbortSignal | undefined
  /** The deadline for running callbacks once the candidacy stops, by this process's monotonic clock. */
  #drainedAt = Number.POSITIVE_INFINITY
  /** Resolves when the candidacy has stopped and its callbacks have ended, or after `drainMs`. */
  readonly ended: Promise<void>
  #term: OpenTerm | undefined

  constructor(database: Database, take: Take, name: string, options: ElectOptions, closed?: AbortSignal) {
    checkName(name)
    const { leaseMs, drainMs, holder, signal } = electOptions.read(options)
    this.name = name
    this.#database = database
    this.#take = take
    this.#options = options
    this.#closed = closed
    this.#drainMs = drainMs
    const waits = { leaseMs, holder, waitMs: MAX_TIMER_MS, signal: this.#stopping.signal }
    const spec = checkLock(keyOf('leader', name), waits, true)
    this.#spec = { ...spec, pollMs: Math.min(MAX_POLL_MS, Math.max(MIN_POLL_MS, spec.leaseMs / 3)) }
    // Any number of elections may share a signal. Without this, Node.js warns of a leak.
    for (const shared of [signal, closed]) if (shared) setMaxListeners(0, shared)
    if (signal?.aborted) this.#stopping.abort()
    signal?.addEventListener('abort', this.#onAbort, { once: true })
    // A held lock does not keep the process alive. A candidate or a leader does.
    const alive = setInterval(() => {}, MAX_TIMER_MS)
    this.ended = this.#campaign().finally(() => clearInterval(alive))
  }

  /** The term in which this process leads. Undefined if it does not lead. */
  get term(): Term | undefined {
    return this.isLeader ? this.#term : undefined
  }

  /** Whether this process leads, as far as it knows. Another process may lead by the time you act on this. Only a guarded write detects that. */
  get isLeader(): boolean {
    return this.#term?.isLeading ?? false
  }

  /**
   * Ends the candidacy. A leader's `term.signal` fires. The leader hands over when `onElected` has ended, or after `drainMs`. Then another candidate is
   * elected, at once if it listens for notifications.
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
        // One unit of work, so that `close` waits until the lock is released.
        const isWell = await this.#database.work(async () => this.#lead(await this.#take(this.#spec)))
        failures = isWell ? 0 : failures + 1
      } catch (error) {
        if (signal.aborted || error instanceof ClosedError) return
        // The wait has reached the longest possible timer, because others have led for weeks.
        if (error instanceof BusyError || error instanceof GuardedError) continue
        this.#emitFailed(error)
        failures++
      }
      // Gives another candidate the chance to be elected, or the server time to come back.
      if (failures > 0)
        await sleep(backoffMs(failures, this.#spec.leaseMs / 3, MAX_REST_MS), signal).catch(() => {})
    }
  }

  /** Runs one term until its callbacks have ended, so that two terms of one process do not overlap. Returns whether `onElected` succeeded. */
  async #lead(lock: Lock): Promise<boolean> {
    // guard: election.stopped
    if (this.#stopping.signal.aborted) {
      // `stop` was called just after the lock was acquired, for example by a listener of its event.
      await lock[Symbol.asyncDispose]() // guard: election.release
      return true
    }
    const term = new OpenTerm(lock, this.name)
    this.#term = term
    const startedAt = performance.now()
    const origin = { ...this.#database.origin, election: this.name, epoch: term.epoch }
    const resign = (): void => term.end('resigned') // guard: election.resign
    this.#stopping.signal.addEventListener('abort', resign)
    emit('dibs:leader.elected', { ...origin, isTakeover: lock.tookOver !== undefined })
    // Do not call `onElected` for a term that is already over.
    const { onElected, onLost } = term.signal.aborted ? {} : this.#options
    let isWell = true
    const work = call(onElected, term).catch((error) => {
      if (term.hasCaused(error)) return
      isWell = false
      this.#emitFailed(error)
      resign()
    })
    await term.ended
    this.#stopping.signal.removeEventListener('abort', resign)
    const { reason } = term
    emit('dibs:leader.lost', { ...origin, reason, ledMs: performance.now() - startedAt })
    const afterLoss = call(onLost, term, reason).catch((error) => this.#emitFailed(error))
    // While `onElected` runs, no other process should begin the same work. So a leader that resigns holds the lock until then.
    // A leader that has lost the lock is no candidate meanwhile.
    await this.#drain(work) // guard: election.drain
    await lock[Symbol.asyncDispose]()
    this.#term = undefined
    await this.#drain(afterLoss, this.#drainMs)
    return isWell
  }

  /** Waits for `work`, at most `maxMs`. Once the candidacy stops, all waits take at most `drainMs` in total. Once the instance is closed, does not wait. */
  async #drain(work: Promise<unknown>, maxMs = Number.POSITIVE_INFINITY): Promise<void> {
    const [stopping, closed] = [this.#stopping.signal, this.#closed]
    const deadlineAt = performance.now() + maxMs
    let timer: NodeJS.Timeout | undefined
    const over = new AbortController()
    const end = (): void => over.abort()
    const watch = (): void => {
      clearTimeout(timer)
      const endsAt = Math.min(deadlineAt, this.#drainedAt)
      if (endsAt < Number.POSITIVE_INFINITY) timer = setTimeout(end, Math.max(0, endsAt - performance.now()))
    }
    watch()
    stopping.addEventListener('abort', watch)
    closed?.addEventListener('abort', end) // guard: election.close
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

/** Also turns an error that `fn` throws synchronously into a rejection. */
async function call<A extends unknown[]>(
  fn: ((...args: A) => unknown) | undefined,
  ...args: A
): Promise<void> {
  await fn?.(...args)
}

function checkName(name: string): void {
  checkKey('name', name)
  const bytes = Buffer.byteLength(name.replaceAll(/[%:]/g, '%25'))
  if (bytes > MAX_NAME_BYTES)
    throw new InvalidInputError(
      'name',
      `must be at most ${MAX_NAME_BYTES} bytes long, where each : and % counts as three, and is ${bytes}; hash it`,
    )
}
