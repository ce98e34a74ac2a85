import { BusyError } from '../errors.js'
import { emit } from '../postgres/events.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { toOutcome } from '../postgres/json.js'
import { parseStored } from '../postgres/standard-schema.js'
import { FlightCall } from './flight-call.js'
import { KEEP_MS } from './flight-lead.js'
import {
  checkFlight,
  checkFlightKey,
  type FlightSpec,
  type SingleFlight,
  type SingleFlightOptions,
} from './flight-spec.js'
import { dropFlight, lastValue } from './flight-statements.js'
import type { LockParts } from './held-lock.js'
import { KeyFlight } from './key-flight.js'
import { originOf } from './lock-origin.js'

/** For a load that is just being published. */
const FORGET_WAIT_MS = 5_000

/** How long a value is read that is asked for when the time is over. */
const LAST_MS = 1_000

/** What a caller that waits for nobody's lead is given as `signal`, if it brings none. */
const never = new AbortController().signal

/** What it is to those who are given what was stored. */
const copyOf = (value: unknown): unknown =>
  value === undefined ? undefined : JSON.parse(toOutcome('value', value))

/** The flights of one instance. */
export class Flights {
  readonly #parts: LockParts
  readonly #flights = new Map<string, KeyFlight>()
  readonly singleFlight: SingleFlight

  constructor(parts: LockParts) {
    this.#parts = parts
    const fly = (key: string, load: unknown, options?: SingleFlightOptions) =>
      this.#fly(checkFlight(key, load, options))
    // Checked first, and then rejected: never thrown.
    const call = async (key: string, load: unknown, options?: SingleFlightOptions) => fly(key, load, options)
    const forget = (key: string): Promise<void> => this.#forget(key)
    this.singleFlight = Object.assign(call as unknown as SingleFlight, { forget })
  }

  /** Nobody waits any longer for what another process does. */
  stopWaiting(): void {
    for (const flight of this.#flights.values()) flight.stopWaiting()
  }

  async #forget(key: string): Promise<void> {
    const values = [checkFlightKey(key), String(KEEP_MS), String(FORGET_WAIT_MS)]
    await this.#parts.database.sendWaiting(FORGET_WAIT_MS, dropFlight, values).catch((error) => {
      if (!hasWaitedInVain(error)) throw error
      throw new BusyError(`the row of flight "${key}", to forget it`, FORGET_WAIT_MS, 100, { cause: error })
    })
  }

  async #fly(spec: FlightSpec): Promise<unknown> {
    return await this.#parts.database.work(async () => {
      spec.signal?.throwIfAborted()
      const { flight, call } = this.#join(spec)
      const ending = await call.ended
      const { waitedMs } = call
      if (call.hasWaited) emit('dibs:flight.waited', { ...this.#origin(spec.key), waitedMs, how: ending.how })
      if (ending.how === 'error') throw ending.error
      const value =
        ending.how === 'value'
          ? ending.read()
          : await this.#giveUp(spec, waitedMs, ending.error ?? flight.fault, flight.leftMs)
      return await parseStored(spec.result, value, `flight "${spec.key}"`)
    })
  }

  #join(spec: FlightSpec): { flight: KeyFlight; call: FlightCall } {
    const { key } = spec
    const there = this.#flights.get(key)
    const flight = there ?? new KeyFlight(this.#parts, key, () => this.#flights.delete(key))
    const call = new FlightCall(spec, (one) => flight.leave(one))
    flight.join(call)
    if (!there) {
      this.#flights.set(key, flight)
      // Also what nobody waits for any more is a load that others may wait for.
      this.#parts.database.finish(flight.run())
    }
    return { flight, call }
  }

  /** @param error why the database could not be asked, if that is the reason */
  async #giveUp(
    spec: FlightSpec,
    waitedMs: number,
    error: unknown,
    leftMs: number | undefined,
  ): Promise<unknown> {
    const { key, onTimeout, load, signal = never } = spec
    emit('dibs:flight.timed-out', { ...this.#origin(key), waitedMs, onTimeout, error })
    if (onTimeout === 'load') return copyOf(await load({ key, signal, fence: undefined }))
    if (onTimeout === 'stale') {
      const rows = await this.#readLast(key)
      if (rows?.[0]) return rows[0].value === null ? undefined : JSON.parse(`${rows[0].value}`)
    }
    if (error !== undefined) throw error
    const waited = spec.waitMs === 0 ? 0 : waitedMs
    throw new BusyError(`the load of "${key}" by another`, waited, leftMs ?? 100)
  }

  async #readLast(key: string) {
    return await this.#parts.database.sendPart(lastValue, [key], LAST_MS).catch(() => undefined)
  }

  #origin(key: string) {
    return originOf(this.#parts.database, key)
  }
}
