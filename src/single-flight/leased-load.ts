import { HeldLock } from '../locks/held-lock.js'
import type { GrantedLock, LockContext } from '../locks/lock-context.js'
import { lockOrigin, lockTopic } from '../locks/lock-notifications.js'
import { releaseOrphanedLock, releaseUnwantedLock } from '../locks/orphaned-lock.js'
import { emit } from '../postgres/events.js'
import { BRIEF_ROW_WAIT_MS, BRIEFLY, hedgedSender } from '../postgres/hedged-sender.js'
import { toOutcome } from '../postgres/json.js'
import { isTransient, type RetryPolicy, retry } from '../postgres/retry.js'
import { checkOutcome } from '../postgres/standard-schema.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { type FlightSpec, leadLeaseMs, leadLockName } from './flight-spec.js'
import { finishFlight } from './flight-statements.js'

/** The outcome of a load. */
export type Loaded =
  /** The value as JSON. Null if the load returned undefined. */
  { readonly json: string | null } | { readonly error: unknown }

/** Each caller gets a copy of its own. */
export const readLoaded = (json: string | null): unknown => (json === null ? undefined : JSON.parse(json))

export interface LoadEnd {
  readonly loaded: Loaded
  /** `refused`: the lead was lost, and another process may load now. `unknown`: the database did not answer. */
  readonly how: 'published' | 'refused' | 'unknown'
  /** True if the key was forgotten while the load ran, or that is not known. */
  readonly isForgotten: boolean
  /** The newer value, of the process that took over the lead. */
  readonly newer?: { readonly json: string | null; readonly fence: number } | undefined
}

interface FinishResult {
  readonly state: 'published' | 'refused'
  readonly isForgotten: boolean
  readonly isWanted?: boolean
  readonly isNewer?: boolean
  readonly fence?: number
  readonly isVoid?: boolean
  readonly value?: unknown
}

/** The shortest time to keep the outcome of a load: longer than the pause between two polls of a waiting call. */
export const KEEP_MS = 60_000

/** How long to wait for a call that has locked the row, such as one that forgets the key. */
const ROW_WAIT_MS = 1_000

/** How long to wait for an answer: a value may be large, and the network slow. */
const ANSWER_MS = 5_000

/** How often, and for how long, to try to publish an outcome. The callers of the load wait for that. */
const PUBLISH: RetryPolicy = { isRetryable: isTransient, baseMs: 20, maxMs: 500, maxAttempts: 3 }
const MAX_TRYING_MS = 5_000

/** Runs one load: renews the lead until the load has ended, and publishes its outcome under the fence of the lead. Never rejects. */
export class LeasedLoad {
  readonly fence: number
  readonly #context: LockContext
  readonly #spec: FlightSpec
  readonly #lock: HeldLock
  readonly #isBackground: boolean

  /** @param sentAt when the statement was sent that got the lead, by `performance.now()` */
  constructor(
    context: LockContext,
    spec: FlightSpec,
    result: GrantedLock,
    { sentAt, isBackground }: { sentAt: number; isBackground: boolean },
  ) {
    this.#context = context
    this.#spec = spec
    this.#isBackground = isBackground
    this.fence = result.fence
    const lead = {
      name: leadLockName(spec.key),
      leaseMs: spec.leaseMs,
      maxHoldMs: spec.timeoutMs,
      permits: 1,
    }
    this.#lock = new HeldLock(context, lead, result, sentAt)
  }

  /** Fires when the lead is lost. The load may still run after that. */
  get signal(): AbortSignal {
    return this.#lock.signal
  }

  /** Releases the lead without a load. */
  releaseLead(): Promise<void> {
    return this.#lock[Symbol.asyncDispose]()
  }

  /** @param onLoaded called when the load has ended, just before its outcome is published */
  async run(onLoaded: () => void = () => {}): Promise<LoadEnd> {
    const startedAt = performance.now()
    const loaded = await this.#load()
    const loadMs = performance.now() - startedAt
    // After this process was suspended, this may be the first code that sees the deadline.
    const isLost = 'error' in loaded && (this.#lock.signal.aborted || performance.now() >= this.#lock.endsAt)
    // From now on the lead is not renewed: a late renewal would find it released, and count it as lost.
    this.#lock.stopRenewal()
    onLoaded()
    const end = isLost ? await this.#resign(loaded) : await this.#publish(loaded, loadMs)
    this.#emitEnd(end, loadMs)
    return end
  }

  async #load(): Promise<Loaded> {
    const { key, load, result } = this.#spec
    try {
      const value = await load({ key, signal: this.#lock.signal, fence: this.fence })
      const json = value === undefined ? null : toOutcome('value', value)
      // A value that this caller cannot read must not be stored for the others.
      await checkOutcome(result, 'value', readLoaded(json))
      return { json }
    } catch (error) {
      return { error }
    }
  }

  /**
   * Releases the lead without publishing. The load failed after the lead was lost, and probably for that reason. The server may not know yet that the lead is
   * lost.
   */
  async #resign(loaded: Loaded): Promise<LoadEnd> {
    await releaseUnwantedLock(this.#context, this.#lock, this.#lock).catch(() => {})
    return { loaded, how: 'refused', isForgotten: true }
  }

  async #publish(loaded: Loaded, loadMs: number): Promise<LoadEnd> {
    try {
      const result = await this.#send(loaded, loadMs)
      // guard: flight.notify
      if (result.isWanted) this.#context.wakeups.notify(lockTopic(this.#lock.name))
      const newer = result.isNewer
        ? { json: result.isVoid ? null : JSON.stringify(result.value), fence: Number(result.fence) }
        : undefined
      return { loaded, how: result.state, isForgotten: result.isForgotten, newer }
    } catch (error) {
      emit('dibs:flight.not-published', { ...this.#origin, fence: this.fence, error })
      // Other processes may load once the server answers again. The callers have their value, and do not wait for that.
      void releaseOrphanedLock(this.#context, this.#lock, leadLeaseMs(this.#spec))
      return { loaded, how: 'unknown', isForgotten: true }
    }
  }

  /** The statement may be repeated, because it names its fence. */
  async #send(loaded: Loaded, loadMs: number): Promise<FinishResult> {
    const { key, ttlMs, staleMs, errorTtlMs } = this.#spec
    const isFailure = 'error' in loaded
    const values = [
      ...[key, this.#lock.holder, String(this.fence)],
      ...(isFailure ? [null, storeFailure(loaded.error)] : [loaded.json, null]),
      ...[Math.ceil(loadMs), isFailure ? errorTtlMs : ttlMs, staleMs, KEEP_MS].map(String),
    ]
    const { database } = this.#context
    const options = {
      connection: hedgedSender(database, {
        ...BRIEFLY,
        dedicatedValues: [...values, BRIEF_ROW_WAIT_MS],
      }),
      deadlineMs: ROW_WAIT_MS + ANSWER_MS,
    }
    const sendOnce = () => database.send(finishFlight, [...values, String(ROW_WAIT_MS)], options)
    const [row] = await retry(sendOnce, { ...PUBLISH, deadlineAt: performance.now() + MAX_TRYING_MS })
    return JSON.parse(`${row?.result}`)
  }

  #emitEnd({ loaded, how, isForgotten }: LoadEnd, loadMs: number): void {
    const payload = { ...this.#origin, fence: this.fence, loadMs, isBackground: this.#isBackground }
    if (how === 'refused') emit('dibs:flight.refused', { ...this.#origin, fence: this.fence, loadMs })
    if ('error' in loaded) emit('dibs:flight.failed', { ...payload, error: loaded.error })
    else if (how === 'published') emit('dibs:flight.loaded', { ...payload, isKept: !isForgotten })
  }

  get #origin() {
    return lockOrigin(this.#context.database, this.#spec.key)
  }
}
