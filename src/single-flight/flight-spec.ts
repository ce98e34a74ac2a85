import { InvalidInputError } from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration, number } from '../options/number-options.js'
import { checked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { abortSignal, oneOf } from '../options/value-options.js'
import type { Stored } from '../postgres/json.js'
import { checkKey, MAX_KEY_BYTES } from '../postgres/key.js'
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

const PREFIX = 'flight:'
const MAX_FLIGHT_KEY_BYTES = MAX_KEY_BYTES - PREFIX.length

export const singleFlightOptions = optionTable<SingleFlightOptions>()(
  'dibs.singleFlight',
  {
    ttlMs: duration({ default: 0, min: 0 }),
    staleMs: duration({ default: 0, min: 0 }),
    errorTtlMs: duration({ default: 0, min: 0 }),
    waitMs: duration({ default: 10_000, min: 0, max: MAX_TIMER_MS }),
    leaseMs: duration({ default: 5_000, min: 50, max: 24 * 3_600_000 }),
    timeoutMs: duration({ default: 300_000, max: MAX_TIMER_MS }),
    ifBusy: oneOf(['fail', 'load', 'serve-stale'], { default: 'fail' }),
    // The author of probabilistic early expiration recommends 1; ten times that is the highest.
    refreshEarly: number({ default: 1, min: 0, max: 10 }),
    signal: abortSignal(),
    result: checked(checkSchema),
  },
  { refused: { tx: 'is no option here: what is shared with others cannot be a part of your transaction' } },
)

/** The checked arguments of a `singleFlight` call, with defaults filled in. */
export type FlightSpec = ReturnType<typeof checkFlight>

/** The name of the lock that the loading caller holds. */
export const leadLockName = (key: string): string => `${PREFIX}${key}`

/** The lease of the lead, at most `timeoutMs`. The load cannot use a longer lease, and other callers would wait for its end. */
export const leadLeaseMs = ({ leaseMs, timeoutMs }: FlightSpec): number => Math.min(leaseMs, timeoutMs)

export function checkFlightKey(key: unknown): string {
  const bytes = typeof key === 'string' ? Buffer.byteLength(key) : 0
  if (bytes > MAX_FLIGHT_KEY_BYTES)
    throw new InvalidInputError(
      'key',
      `must be at most ${MAX_FLIGHT_KEY_BYTES} bytes long, and is ${bytes}; hash it`,
    )
  return checkKey('key', key)
}

export function checkFlight(key: unknown, options: SingleFlightOptions, load: unknown) {
  const checked = checkFlightKey(key)
  checkFunction('load', load)
  return { ...singleFlightOptions.read(options), key: checked, load: load as Load }
}
