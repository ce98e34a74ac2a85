import { InvalidInputError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Stored } from '../postgres/json.js'
import { checkKey, MAX_KEY_BYTES } from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { checkSchema, type StandardSchema } from '../postgres/standard-schema.js'

/** The argument of a load function. */
export interface LoadContext {
  readonly key: string
  /**
   * Fires when this load loses the lead: another caller loads, and the value of this load is dropped. Pass the signal to `fetch` and similar calls.
   *
   * Also fires when the instance is closed and the load does not end in time. Does not fire when a caller stops waiting, because others may wait for the
   * same load.
   */
  readonly signal: AbortSignal
  /** Grows with each load of the key. Undefined if the load is for its own caller alone (`ifBusy: 'load'`). */
  readonly fence: number | undefined
}

/** The policy for a caller whose `waitMs` is over, or that cannot reach the database. */
export type IfBusy = 'fail' | 'load' | 'serve-stale'

export interface SingleFlightOptions<R = unknown> {
  /** How long the value is returned to later callers. Default 0: only to callers that wait for the same load. */
  readonly ttlMs?: number | undefined
  /** How long after `ttlMs` the old value is still returned, while one caller loads a new one in the background. Default 0. */
  readonly staleMs?: number | undefined
  /** How long a failed load fails later callers too. A load that lost the lead does not count. Default 0: only callers that wait for the same load. */
  readonly errorTtlMs?: number | undefined
  /**
   * How long to wait for the load of another caller. The caller's own load is bounded by `timeoutMs` instead. If the own load loses the lead, the caller waits
   * for the next load, with a new `waitMs`. Default 10,000.
   */
  readonly waitMs?: number | undefined
  /** How long the lead of a load lives without renewal. Renewed automatically. 50 to 86,400,000, and no longer than `timeoutMs`. Default 5,000. */
  readonly leaseMs?: number | undefined
  /** The longest time that one load may take. After that another caller loads, and the value of this load is dropped. Default 300,000. */
  readonly timeoutMs?: number | undefined
  /**
   * The policy when `waitMs` is over, or when the database cannot be reached.
   *
   * - `fail` (default): throw a `BusyError`, or the error of the database.
   * - `load`: load for this caller alone, without sharing the value.
   * - `serve-stale`: return the last value that still exists and fits `result`, however old. Without such a value, as `fail`.
   */
  readonly ifBusy?: IfBusy | undefined
  /** How early, on average, one caller reloads a value before it expires, as a multiple of the load time. 0: never. Default 1. */
  readonly refreshEarly?: number | undefined
  /** Ends the wait of this caller. The load goes on, unless it is for this caller alone. */
  readonly signal?: AbortSignal | undefined
  /**
   * Validates the value for every caller: any Standard Schema. A loaded value that does not fit is not shared. A stored value that does not fit is loaded
   * again.
   */
  readonly result?: StandardSchema<unknown, R> | undefined
}

/** The type of `dibs.singleFlight`. */
export interface SingleFlight {
  <T>(key: string, load: (context: LoadContext) => Promise<T>): Promise<Stored<T>>
  <T, R = Stored<T>>(
    key: string,
    options: SingleFlightOptions<R> | undefined,
    load: (context: LoadContext) => Promise<T>,
  ): Promise<NoInfer<R>>
  /**
   * Drops the value of a key. Calls made after `forget` has resolved load the value again. A load that runs meanwhile serves the callers that wait for it, and
   * its value is not kept. Call `forget` after the commit of the change: `tx.afterCommit`.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   await tx.query('update rate set value = 1.08 where name = $1', ['EUR'])
   *   tx.afterCommit(() => dibs.singleFlight.forget('fx:EUR'))
   * })
   */
  forget(key: string): Promise<void>
}

export type Load = (context: LoadContext) => Promise<unknown>

/** The checked arguments of a `singleFlight` call, with defaults filled in. */
export interface FlightSpec {
  readonly key: string
  readonly load: Load
  readonly ttlMs: number
  readonly staleMs: number
  readonly errorTtlMs: number
  readonly waitMs: number
  readonly leaseMs: number
  readonly timeoutMs: number
  readonly ifBusy: IfBusy
  readonly refreshEarly: number
  readonly signal: AbortSignal | undefined
  readonly result: StandardSchema<unknown, unknown> | undefined
}

const names = [
  'ttlMs',
  'staleMs',
  'errorTtlMs',
  'waitMs',
  'leaseMs',
  'timeoutMs',
  'ifBusy',
  'refreshEarly',
  'signal',
  'result',
]
const PREFIX = 'flight:'
const MAX_FLIGHT_KEY_BYTES = MAX_KEY_BYTES - PREFIX.length
const MAX_LEASE_MS = 24 * 3_600_000

/** The highest `refreshEarly`: ten times the value 1 that the author of probabilistic early expiration recommends. */
const MAX_EARLY = 10

/** The name of the lock that the loading caller holds. */
export const leadOf = (key: string): string => `${PREFIX}${key}`

/** The lease of the lead, at most `timeoutMs`. The load cannot use a longer lease, and other callers would wait for its end. */
export const leadMs = ({ leaseMs, timeoutMs }: FlightSpec): number => Math.min(leaseMs, timeoutMs)

export function checkFlightKey(key: unknown): string {
  const bytes = typeof key === 'string' ? Buffer.byteLength(key) : 0
  if (bytes > MAX_FLIGHT_KEY_BYTES)
    throw new InvalidInputError(
      'key',
      `must be at most ${MAX_FLIGHT_KEY_BYTES} bytes long, and is ${bytes}; hash it`,
    )
  return checkKey('key', key)
}

export function checkFlight(key: unknown, options: SingleFlightOptions, load: unknown): FlightSpec {
  const checked = checkFlightKey(key)
  checkFunction('load', load)
  if (typeof options === 'object' && options !== null && 'tx' in options)
    throw new InvalidInputError(
      'tx',
      'is no option here: what is shared with others cannot be a part of your transaction',
    )
  checkOptions(options, names)
  const { ifBusy = 'fail', refreshEarly = 1, signal, result } = options
  const {
    ttlMs = 0,
    staleMs = 0,
    errorTtlMs = 0,
    waitMs = 10_000,
    leaseMs = 5_000,
    timeoutMs = 300_000,
  } = options
  if (!['fail', 'load', 'serve-stale'].includes(ifBusy))
    throw new InvalidInputError('ifBusy', `must be 'fail', 'load' or 'serve-stale', not ${showGiven(ifBusy)}`)
  if (typeof refreshEarly !== 'number' || !(refreshEarly >= 0 && refreshEarly <= MAX_EARLY))
    throw new InvalidInputError(
      'refreshEarly',
      `must be a number from 0 to ${MAX_EARLY}, not ${typeof refreshEarly === 'number' ? refreshEarly : nameGiven(refreshEarly)}`,
    )
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(signal)}`)
  checkSchema('result', result)
  return {
    ...{ key: checked, load: load as Load, ifBusy, refreshEarly, signal, result },
    ttlMs: checkDuration('ttlMs', ttlMs, 0),
    staleMs: checkDuration('staleMs', staleMs, 0),
    errorTtlMs: checkDuration('errorTtlMs', errorTtlMs, 0),
    waitMs: checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS),
    leaseMs: checkDuration('leaseMs', leaseMs, 50, MAX_LEASE_MS),
    timeoutMs: checkDuration('timeoutMs', timeoutMs, 1, MAX_TIMER_MS),
  }
}
