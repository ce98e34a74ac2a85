import { CommitOutcomeUnknownError, DibsError } from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { emit } from '../postgres/events.js'
import { toOutcome } from '../postgres/json.js'
import { sendEitherWay } from '../postgres/reserved-line.js'
import { sleep } from '../postgres/sleep.js'
import { checkOutcome } from '../postgres/standard-schema.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { type FlightSpec, leadMs, leadOf } from './flight-spec.js'
import { finishFlight } from './flight-statements.js'
import { giveBackUnseen, giveBackUnwanted } from './give-back-unseen.js'
import { HeldLock, type LockParts, type ToldLock } from './held-lock.js'
import { originOf, topicOf } from './lock-origin.js'

/** What came of a load. */
export type Loaded =
  /** As JSON; null: nothing was returned. */
  { readonly json: string | null } | { readonly error: unknown }

/** A copy of its own for each who asks. */
export const readLoaded = (json: string | null): unknown => (json === null ? undefined : JSON.parse(json))

export interface LeadEnd {
  readonly loaded: Loaded
  /**
   * `published`; `refused`: the lead was lost, and another may have taken it; `unknown`: the database could not be asked.
   */
  readonly how: 'published' | 'refused' | 'unknown'
  /** It began before the key was forgotten, or that is not known. */
  readonly isForgotten: boolean
  /** The newer value, of whoever has taken the lead. */
  readonly newer?: { readonly json: string | null; readonly fence: number } | undefined
}

interface Told {
  readonly state: 'published' | 'refused'
  readonly isForgotten: boolean
  readonly isWanted?: boolean
  readonly isNewer?: boolean
  readonly fence?: number
  readonly isVoid?: boolean
  readonly value?: unknown
}

/** What came of a load is there for at least so long: longer than anybody who waits for it does not look. */
export const KEEP_MS = 60_000

/** For whoever has the row of the lead for a moment, or is forgetting the key. */
const WAIT_MS = 1_000

/** How long an answer is waited for: a value may be large, and the network slow. */
const ANSWER_MS = 5_000

/** How often, and for how long, it is tried: its callers wait for that. */
const MAX_TRIES = 3
const MAX_TRYING_MS = 5_000

/** How long the pool is given before the connection for renewals is asked, how long that may take, and wait for the row. */
const AFTER_MS = 100
const LINE_MS = 1_000
const LINE_WAIT_MS = 50

/** One load: the lead is renewed until it has ended, and what came of it is published under its fence. Never fails. */
export class FlightLead {
  readonly fence: number
  readonly #parts: LockParts
  readonly #spec: FlightSpec
  readonly #lock: HeldLock
  readonly #isBackground: boolean

  /** @param sentAt when the statement was sent that took the lead, by `performance.now()` */
  constructor(
    parts: LockParts,
    spec: FlightSpec,
    told: ToldLock,
    { sentAt, isBackground }: { sentAt: number; isBackground: boolean },
  ) {
    this.#parts = parts
    this.#spec = spec
    this.#isBackground = isBackground
    this.fence = told.fence
    const lead = {
      name: leadOf(spec.key),
      leaseMs: spec.leaseMs,
      maxHoldMs: spec.timeoutMs,
      permits: 1,
    }
    this.#lock = new HeldLock(parts, lead, told, sentAt)
  }

  /** Fires when the lead is lost. The load may go on forever then. */
  get signal(): AbortSignal {
    return this.#lock.signal
  }

  /** Nobody wants it any more. */
  giveBack(): Promise<void> {
    return this.#lock[Symbol.asyncDispose]()
  }

  /** @param onLoaded called when the load has ended, just before that is published */
  async run(onLoaded: () => void = () => {}): Promise<LeadEnd> {
    const startedAt = performance.now()
    const loaded = await this.#load()
    const loadMs = performance.now() - startedAt
    // By the clock, too: of a process that stood still it may be the first to see that.
    const isLost = 'error' in loaded && (this.#lock.signal.aborted || performance.now() >= this.#lock.endsAt)
    // From now on it is not renewed: nothing that is under way may find the lead given back, and take that for a loss.
    this.#lock.handOver()
    onLoaded()
    const end = isLost ? await this.#resign(loaded) : await this.#publish(loaded, loadMs)
    this.#tell(end, loadMs)
    return end
  }

  async #load(): Promise<Loaded> {
    const { key, load, result } = this.#spec
    try {
      const value = await load({ key, signal: this.#lock.signal, fence: this.fence })
      const json = value === undefined ? null : toOutcome('value', value)
      // What this caller cannot read is nothing for the others, who would read it until it is over.
      await checkOutcome(result, 'value', readLoaded(json))
      return { json }
    } catch (error) {
      return { error }
    }
  }

  /** It failed after the lead was lost, and mostly by that: no failure of the others. The server may not know yet that the lead is lost. */
  async #resign(loaded: Loaded): Promise<LeadEnd> {
    await giveBackUnwanted(this.#parts, this.#lock, this.#lock)
    return { loaded, how: 'refused', isForgotten: true }
  }

  async #publish(loaded: Loaded, loadMs: number): Promise<LeadEnd> {
    try {
      const told = await this.#send(loaded, loadMs)
      if (told.isWanted) this.#parts.wakeups.hint(topicOf(this.#lock.name))
      const newer = told.isNewer
        ? { json: told.isVoid ? null : JSON.stringify(told.value), fence: Number(told.fence) }
        : undefined
      return { loaded, how: told.state, isForgotten: told.isForgotten, newer }
    } catch (error) {
      emit('dibs:flight.not-published', { ...this.#origin, fence: this.fence, error })
      // Others load it as soon as the database can be asked again. Its callers have their value, and do not wait for that.
      void giveBackUnseen(this.#parts, this.#lock, leadMs(this.#spec)).catch(() => {})
      return { loaded, how: 'unknown', isForgotten: true }
    }
  }

  /** May be sent again: it names its fence. */
  async #send(loaded: Loaded, loadMs: number): Promise<Told> {
    const { key, ttlMs, staleMs, errorTtlMs } = this.#spec
    const isFailure = 'error' in loaded
    const values = [
      ...[key, this.#lock.holder, String(this.fence)],
      ...(isFailure ? [null, storeFailure(loaded.error)] : [loaded.json, null]),
      ...[Math.ceil(loadMs), isFailure ? errorTtlMs : ttlMs, staleMs, KEEP_MS].map(String),
    ]
    const startedAt = performance.now()
    for (let tries = 1; ; tries++) {
      try {
        const [row] = await sendEitherWay(this.#parts.database, finishFlight, [...values, String(WAIT_MS)], {
          withinMs: WAIT_MS + ANSWER_MS,
          afterMs: AFTER_MS,
          lineMs: LINE_MS,
          overLine: [...values, String(LINE_WAIT_MS)],
        })
        return JSON.parse(`${row?.told}`)
      } catch (error) {
        const mayHelp =
          error instanceof CommitOutcomeUnknownError || (error instanceof DibsError && error.retryable)
        const isTried = tries === MAX_TRIES || performance.now() - startedAt >= MAX_TRYING_MS
        if (!mayHelp || isTried) throw error
        await sleep(fullJitterMs(tries, 20, 500))
      }
    }
  }

  #tell({ loaded, how, isForgotten }: LeadEnd, loadMs: number): void {
    const said = { ...this.#origin, fence: this.fence, loadMs, isBackground: this.#isBackground }
    if (how === 'refused') emit('dibs:flight.refused', { ...this.#origin, fence: this.fence, loadMs })
    if ('error' in loaded) emit('dibs:flight.failed', { ...said, error: loaded.error })
    else if (how === 'published') emit('dibs:flight.loaded', { ...said, isKept: !isForgotten })
  }

  get #origin() {
    return originOf(this.#parts.database, this.#spec.key)
  }
}
