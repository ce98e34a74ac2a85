import { InvalidInputError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Stored } from '../postgres/json.js'
import { checkKey, MAX_KEY_BYTES } from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { checkSchema, type StandardSchema } from '../postgres/standard-schema.js'

/** What a function that loads is given. */
export interface LoadContext {
  readonly key: string
  /**
   * Fires when the lead is lost: another loads in its place, and what comes of this load is not kept. Give it to `fetch` and the like. It does not fire when a
   * caller goes: others may wait for the same load; unless it loads for its own caller alone. Fires as well when the instance is closed, and this did not end in time.
   */
  readonly signal: AbortSignal
  /** Higher for each load than for all before it; undefined if it loads for its own caller alone (`onTimeout: 'load'`). */
  readonly fence: number | undefined
}

/** What a caller is given whose time is over, or who cannot reach the database. */
export type OnTimeout = 'throw' | 'load' | 'stale'

export interface SingleFlightOptions<R = unknown> {
  /** For how long the value is given to others. Default 0: only to those who wait for the same load. */
  readonly ttlMs?: number | undefined
  /** For how long after that it still is, while one of them loads another in the background. Default 0. */
  readonly staleMs?: number | undefined
  /** For how long a failure is given to others, too; but not that of a load which has lost the lead. Default 0: only to those who wait for the same load. */
  readonly errorTtlMs?: number | undefined
  /**
   * How long to wait for the load of another. A load of its own takes as long as it takes; if that loses the lead, it is another's that is waited for, and `waitMs` begins
   * anew. Default 10,000.
   */
  readonly waitMs?: number | undefined
  /** How long after its last sign of life whoever loads counts as dead; renewed by itself. 50 to 86,400,000, and no longer than `maxLoadMs`. Default 5,000. */
  readonly leaseMs?: number | undefined
  /** A load that takes longer loses the lead, however alive it is: another loads in its place. Default 300,000. */
  readonly maxLoadMs?: number | undefined
  /**
   * When the wait is over: `throw` (default) a `BusyError`, or the error of the database if it could not be asked; `load` by itself, without sharing it, also if the database cannot be reached; `stale`: the last
   * value that is still there and fits `result`, however old, else as `throw`.
   */
  readonly onTimeout?: OnTimeout | undefined
  /** How early one caller begins to load anew before the value is over, in times of what a load takes, by chance. 0: never. Default 1. */
  readonly refreshEarly?: number | undefined
  /** Ends the wait of this caller. A load goes on, unless it is for this caller alone. */
  readonly signal?: AbortSignal | undefined
  /**
   * Reads the value, for whoever has loaded it as for the others: any Standard Schema. What is loaded and does not fit is not published; what is stored and does not
   * fit is loaded anew.
   */
  readonly result?: StandardSchema<unknown, R> | undefined
}

/** `dibs.singleFlight`. */
export interface SingleFlight {
  <T>(key: string, load: (context: LoadContext) => Promise<T>): Promise<Stored<T>>
  <T, R = Stored<T>>(
    key: string,
    options: SingleFlightOptions<R> | undefined,
    load: (context: LoadContext) => Promise<T>,
  ): Promise<NoInfer<R>>
  /**
   * What was loaded before is given to nobody who calls after this has returned. A load that is under way is for those who wait for it, and is not kept. Call
   * it after the commit of what has changed: `tx.afterCommit`.
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

/** What was asked for, checked and whole. */
export interface FlightSpec {
  readonly key: string
  readonly load: Load
  readonly ttlMs: number
  readonly staleMs: number
  readonly errorTtlMs: number
  readonly waitMs: number
  readonly leaseMs: number
  readonly maxLoadMs: number
  readonly onTimeout: OnTimeout
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
  'maxLoadMs',
  'onTimeout',
  'refreshEarly',
  'signal',
  'result',
]
const PREFIX = 'flight:'
const MAX_FLIGHT_KEY_BYTES = MAX_KEY_BYTES - PREFIX.length
const MAX_LEASE_MS = 24 * 3_600_000

/** Ten times as early as the one who found it says. */
const MAX_EARLY = 10

/** The lock that whoever loads has. */
export const leadOf = (key: string): string => `${PREFIX}${key}`

/** For how long it is taken: a load that may not take that long has nothing from the rest, for which others would wait. */
export const leadMs = ({ leaseMs, maxLoadMs }: FlightSpec): number => Math.min(leaseMs, maxLoadMs)

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
  const { onTimeout = 'throw', refreshEarly = 1, signal, result } = options
  const {
    ttlMs = 0,
    staleMs = 0,
    errorTtlMs = 0,
    waitMs = 10_000,
    leaseMs = 5_000,
    maxLoadMs = 300_000,
  } = options
  if (!['throw', 'load', 'stale'].includes(onTimeout))
    throw new InvalidInputError(
      'onTimeout',
      `must be 'throw', 'load' or 'stale', not ${showGiven(onTimeout)}`,
    )
  if (typeof refreshEarly !== 'number' || !(refreshEarly >= 0 && refreshEarly <= MAX_EARLY))
    throw new InvalidInputError(
      'refreshEarly',
      `must be a number from 0 to ${MAX_EARLY}, not ${typeof refreshEarly === 'number' ? refreshEarly : nameGiven(refreshEarly)}`,
    )
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new InvalidInputError('signal', `must be an AbortSignal, not ${nameGiven(signal)}`)
  checkSchema('result', result)
  return {
    ...{ key: checked, load: load as Load, onTimeout, refreshEarly, signal, result },
    ttlMs: checkDuration('ttlMs', ttlMs, 0),
    staleMs: checkDuration('staleMs', staleMs, 0),
    errorTtlMs: checkDuration('errorTtlMs', errorTtlMs, 0),
    waitMs: checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS),
    leaseMs: checkDuration('leaseMs', leaseMs, 50, MAX_LEASE_MS),
    maxLoadMs: checkDuration('maxLoadMs', maxLoadMs, 1, MAX_TIMER_MS),
  }
}
