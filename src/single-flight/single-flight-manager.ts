import { BusyError, ClosedError, StoredValueError } from '../errors.js'
import type { LockContext } from '../locks/lock-context.js'
import { lockOrigin } from '../locks/lock-notifications.js'
import { emit } from '../postgres/events.js'
import { orBusy } from '../postgres/or-busy.js'
import { parseStored } from '../postgres/standard-schema.js'
import type { Statement } from '../postgres/statement.js'
import { FlightCall } from './flight-call.js'
import {
  checkFlight,
  checkFlightKey,
  type FlightSpec,
  type SingleFlight,
  type SingleFlightOptions,
} from './flight-spec.js'
import { dropFlight, lastValue, rejectFlight } from './flight-statements.js'
import { KeyFlight } from './key-flight.js'
import { KEEP_MS, readLoaded } from './leased-load.js'
import { PrivateLoads } from './private-loads.js'
import { RunningLoads } from './running-loads.js'

/** The longest wait for a load that is being published. */
const FORGET_WAIT_MS = 5_000

/** The time limit for reading the last value after `waitMs` is over. */
const LAST_MS = 1_000

/** The single-flight loads of one instance. */
export class SingleFlightManager {
  readonly #context: LockContext
  readonly #flights = new Map<string, KeyFlight>()
  readonly #running = new RunningLoads()
  readonly #private = new PrivateLoads()
  #isClosed = false
  readonly singleFlight: SingleFlight

  constructor(context: LockContext) {
    this.#context = context
    const fly = (key: string, options: SingleFlightOptions, load: unknown) =>
      this.#fly(checkFlight(key, options, load))
    // An async function, so that invalid arguments reject the promise and never throw synchronously.
    const call = async (key: string, ...rest: [unknown] | [SingleFlightOptions | undefined, unknown]) =>
      rest.length === 1 ? fly(key, {}, rest[0]) : fly(key, rest[0] === undefined ? {} : rest[0], rest[1])
    const forget = (key: string): Promise<void> => this.#forget(key)
    this.singleFlight = Object.assign(call as unknown as SingleFlight, { forget })
  }

  /** Ends all waits for loads of other processes. */
  stopWaiting(): void {
    this.#isClosed = true
    for (const flight of this.#flights.values()) flight.stopWaiting()
  }

  /** Ends all waits for loads of this process too. */
  close(): void {
    for (const flight of this.#flights.values()) flight.close()
    this.#private.close()
  }

  async #forget(key: string): Promise<void> {
    const values = [checkFlightKey(key), String(KEEP_MS)]
    await this.#sendForRow(dropFlight, values, `the row of flight "${key}", to forget it`)
  }

  async #sendForRow(statement: Statement, values: readonly string[], subject: string): Promise<void> {
    const sent = [...values, String(FORGET_WAIT_MS)]
    await orBusy(subject, () => this.#context.database.send(statement, sent, { waitMs: FORGET_WAIT_MS }))
  }

  async #fly(spec: FlightSpec): Promise<unknown> {
    return await this.#context.database.work(async () => {
      const startedAt = performance.now()
      const { value, fence } = await this.#get(spec)
      try {
        return await parseStored(spec.result, value, `flight "${spec.key}"`)
      } catch (error) {
        if (fence === undefined || !(error instanceof StoredValueError)) throw error
        await this.#reject(spec.key, fence, error)
      }
      // Only one more try. A value that this process loads fits. A caller that waits for processes of another release could retry forever.
      const leftMs = Math.ceil(spec.waitMs - (performance.now() - startedAt))
      const again = await this.#get({ ...spec, waitMs: Math.min(spec.waitMs, Math.max(1, leftMs)) })
      return await parseStored(spec.result, again.value, `flight "${spec.key}"`)
    })
  }

  async #get(spec: FlightSpec): Promise<{ readonly value: unknown; readonly fence?: number | undefined }> {
    spec.signal?.throwIfAborted()
    if (this.#isClosed) throw new ClosedError()
    const { flight, call } = this.#join(spec)
    const ending = await call.ended
    const { waitedMs } = call
    if (call.hasWaited) emit('dibs:flight.waited', { ...this.#origin(spec.key), waitedMs, how: ending.how })
    if (ending.how === 'error') throw ending.error
    if (ending.how === 'value') return { value: ending.read(), fence: ending.fence }
    return { value: await this.#giveUp(call, ending.error ?? flight.fault, flight) }
  }

  /** Drops a value that this release cannot read, so that it is loaded again for all callers. */
  async #reject(key: string, fence: number, error: StoredValueError): Promise<void> {
    emit('dibs:flight.unfit', { ...this.#origin(key), fence, error })
    await this.#sendForRow(rejectFlight, [key, String(fence)], `the row of flight "${key}", to load it anew`)
  }

  #join(spec: FlightSpec): { flight: KeyFlight; call: FlightCall } {
    const { key } = spec
    const there = this.#flights.get(key)
    const flight = there ?? new KeyFlight(this.#context, key, this.#running, () => this.#flights.delete(key))
    const call = new FlightCall(spec, (one) => flight.leave(one))
    flight.join(call)
    if (!there) {
      this.#flights.set(key, flight)
      // `close` waits for the load even after its callers have left, because other processes may wait for it.
      this.#context.database.finish(flight.run())
    }
    return { flight, call }
  }

  /** @param error why the database could not be reached, if that is the reason */
  async #giveUp(
    { spec, waitedMs, behind }: FlightCall,
    error: unknown,
    { leftMs, held }: Pick<KeyFlight, 'leftMs' | 'held'>,
  ): Promise<unknown> {
    const { key, ifBusy } = spec
    emit('dibs:flight.timed-out', { ...this.#origin(key), waitedMs, ifBusy, error })
    if (ifBusy === 'load') {
      if (this.#isClosed) throw new ClosedError()
      return await this.#private.run(spec)
    }
    if (ifBusy === 'serve-stale') {
      const last = await this.#readLast(spec)
      if (last) return readLoaded(last.json)
    }
    if (error !== undefined) throw error
    // The call never reached the server, so it did not wait for another caller.
    if (behind === undefined) throw this.#context.database.busy(waitedMs)
    const waited = spec.waitMs === 0 ? 0 : waitedMs
    const subject = `the load of "${key}" in ${behind}`
    if (behind === 'this process') throw new BusyError(subject, waited, 100)
    throw new BusyError(subject, waited, leftMs ?? 100, held)
  }

  /** Returns undefined if there is no last value, or none that this release can read. */
  async #readLast({ key, result }: FlightSpec): Promise<{ readonly json: string | null } | undefined> {
    const rows = await this.#context.database
      .send(lastValue, [key], { deadlineMs: LAST_MS, duringClose: true })
      .catch(() => [])
    if (!rows[0]) return undefined
    const json = rows[0].value as string | null
    try {
      // A schema may mutate its input, so the caller parses the JSON again.
      await parseStored(result, readLoaded(json), `flight "${key}"`)
      return { json }
    } catch (error) {
      if (error instanceof StoredValueError) return undefined
      throw error
    }
  }

  #origin(key: string) {
    return lockOrigin(this.#context.database, key)
  }
}
