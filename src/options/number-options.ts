import { InvalidInputError } from '../errors.js'
import { checkAmount, checkLimit } from './check-amount.js'
import { checkDuration, checkLifetime, MAX_DURATION_MS } from './check-duration.js'
import { MAX_TIMER_MS } from './max-timer-ms.js'
import { showGiven } from './name-given.js'
import { type Default, type DefaultedOption, type Option, optionOf } from './option.js'

interface Range {
  readonly min?: number
  readonly max?: number
  readonly default?: number
}

/** A whole number of milliseconds, from 1 by default. `max: MAX_TIMER_MS` for what a timer or a `lock_timeout` waits for. */
export function duration(settings: Range & Default<number>): DefaultedOption<number>
export function duration(settings?: Range): Option<number>
export function duration({ min = 1, max = MAX_DURATION_MS, ...settings }: Range = {}): Option<number> {
  return optionOf((field, value) => checkDuration(field, value, min, max), {
    ...settings,
    bounds: showRange(min, max, showMs),
  })
}

/** A duration from 1, or `Infinity`. See `lifetimeText`. */
export function lifetime(settings: Default<number>): DefaultedOption<number>
export function lifetime(settings?: { readonly default?: number }): Option<number>
export function lifetime(settings: { readonly default?: number } = {}): Option<number> {
  return optionOf(checkLifetime, {
    ...settings,
    bounds: `${showRange(1, MAX_DURATION_MS, showMs)}, or \`Infinity\``,
  })
}

/** A time limit above 0, also with a fraction, since callers compute what is left of a budget; or `Infinity`. */
export function timeLimit(settings: Default<number>): DefaultedOption<number> {
  const check = (field: string, ms: unknown): void => {
    if (typeof ms === 'number' && ms > 0) return
    throw new InvalidInputError(field, `must be a number of milliseconds above 0, not ${showGiven(ms)}`)
  }
  return { ...settings, check, bounds: 'above 0, or `Infinity`' }
}

interface WholeNumberSettings extends Range {
  /** True if programs pass the number on from their own clients. A refusal is then 400, since the client can correct it. */
  readonly fromClient?: boolean
  /** True if `Infinity` stands for no bound. */
  readonly mayBeInfinite?: boolean
}

/** A whole number, from 1 by default. */
export function wholeNumber(settings: WholeNumberSettings & Default<number>): DefaultedOption<number>
export function wholeNumber(settings?: WholeNumberSettings): Option<number>
export function wholeNumber({
  min = 1,
  max = Number.MAX_SAFE_INTEGER,
  fromClient = false,
  mayBeInfinite = false,
  ...settings
}: WholeNumberSettings = {}): Option<number> {
  const check = (field: string, value: unknown): unknown =>
    (mayBeInfinite && value === Number.POSITIVE_INFINITY) ||
    (fromClient ? checkAmount : checkLimit)(field, value, min, max)
  const range = showRange(min, max)
  return optionOf(check, { ...settings, bounds: mayBeInfinite ? `${range}, or \`Infinity\`` : range })
}

/** A number of a range, also one with a fraction. */
export function number(
  settings: { readonly min: number; readonly max: number } & Default<number>,
): DefaultedOption<number>
export function number(settings: { readonly min: number; readonly max: number }): Option<number>
export function number({
  min,
  max,
  ...settings
}: {
  readonly min: number
  readonly max: number
  readonly default?: number
}): Option<number> {
  const check = (field: string, value: unknown): void => {
    if (typeof value === 'number' && value >= min && value <= max) return
    throw new InvalidInputError(field, `must be a number from ${min} to ${max}, not ${showGiven(value)}`)
  }
  return optionOf(check, { ...settings, bounds: showRange(min, max) })
}

/** Durations that the page names in words. */
const named = new Map([
  [MAX_DURATION_MS, '100 years'],
  [MAX_TIMER_MS, '24 days'],
])

// `toLocaleString` would load the locales of ICU at every start, which takes 60 ms.
const showNumber = (bound: number): string => `${bound}`.replace(/\B(?=(\d{3})+$)/g, ',')
const showMs = (bound: number): string => named.get(bound) ?? showNumber(bound)

function showRange(min: number, max: number, show = showNumber): string | undefined {
  if (max !== Number.MAX_SAFE_INTEGER) return `${show(min)} to ${show(max)}`
  return min === Number.MIN_SAFE_INTEGER ? undefined : `from ${show(min)}`
}
