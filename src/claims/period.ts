import { Cron } from 'croner'
import { InvalidInputError } from '../errors.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import { checkZone } from '../postgres/check-zone.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'

/** A calendar period, by the clocks of a time zone. A week begins on Monday. */
export type CalendarUnit = 'hour' | 'day' | 'week' | 'month' | 'year'

/** The periods from one time of a cron expression to the next. */
export interface CronSlots {
  readonly cron: string
}

/** The period: `per` for a calendar period, or `perMs` for a fixed length. */
export interface PeriodOptions<Calendar = CalendarUnit> {
  /** A calendar period, by the clocks of `timeZone`. */
  readonly per?: Calendar | undefined
  /** The time zone of a calendar period: `Europe/Berlin`. Default `UTC`. */
  readonly timeZone?: string | undefined
  /** The length of the period, instead of `per`. */
  readonly perMs?: number | undefined
  /** With `perMs`: the start of one of the periods. Default 1970. */
  readonly from?: Date | undefined
}

/** As `PeriodOptions`, but one of `per` and `perMs` is required. */
export type RequiredPeriod<Calendar = CalendarUnit> =
  | {
      /** A calendar period, by the clocks of `timeZone`. */
      readonly per: Calendar
      /** The time zone of the calendar period: `Europe/Berlin`. Default `UTC`. */
      readonly timeZone?: string | undefined
      readonly perMs?: undefined
      readonly from?: undefined
    }
  | {
      /** The length of the period, instead of `per`. */
      readonly perMs: number
      /** The start of one of the periods. Default 1970. */
      readonly from?: Date | undefined
      readonly per?: undefined
      readonly timeZone?: undefined
    }

/** The names of the options that define a period. */
export const periodNames = ['per', 'timeZone', 'perMs', 'from']

/** A period in the form that the SQL function `period` reads. */
export type PeriodRule =
  | { readonly unit: CalendarUnit; readonly zone: string }
  | { readonly everyUs: number; readonly fromUs: number }
  | { readonly slotsUs: readonly number[] }

/** Returns the rule at a time. Only the slots of a cron expression depend on the time. */
export type PeriodAt = (nowMs: number) => PeriodRule

const units: readonly unknown[] = ['hour', 'day', 'week', 'month', 'year'] satisfies CalendarUnit[]

/** Checks a period. Returns undefined if the caller gave none. With `hasCron`, `per` may be a cron expression. */
export function readPeriod(
  { per, timeZone, perMs, from }: PeriodOptions<unknown>,
  { hasCron = false } = {},
): PeriodAt | undefined {
  if (perMs !== undefined) {
    if (per !== undefined)
      throw new InvalidInputError('perMs', 'must not be given with `per`: give one of them')
    if (timeZone !== undefined)
      throw new InvalidInputError(
        'timeZone',
        'must not be given with `perMs`: it is for periods of the calendar',
      )
    return interval(perMs, from)
  }
  if (from !== undefined) throw new InvalidInputError('from', 'must be given with `perMs` only')
  if (per === undefined) {
    if (timeZone !== undefined) throw new InvalidInputError('timeZone', 'must be given with `per` only')
    return undefined
  }
  if (units.includes(per)) {
    const rule = { unit: per as CalendarUnit, zone: checkZone(timeZone ?? 'UTC') }
    return () => rule
  }
  if (hasCron && typeof per === 'object' && per !== null && 'cron' in per) {
    checkOptions(per, ['cron'])
    return cronSlots(per.cron, checkZone(timeZone ?? 'UTC'))
  }
  const names = [...units.map((unit) => `'${unit}'`), ...(hasCron ? ['{ cron }'] : [])]
  throw new InvalidInputError(
    'per',
    `must be ${names.slice(0, -1).join(', ')} or ${names.at(-1)}, not ${showGiven(per)}; for a length in milliseconds give \`perMs\``,
  )
}

function interval(perMs: unknown, from: unknown = new Date(0)): PeriodAt {
  if (!(from instanceof Date) || Number.isNaN(from.getTime()))
    throw new InvalidInputError('from', `must be a Date, not ${nameGiven(from)}`)
  const rule = { everyUs: checkDuration('perMs', perMs) * 1_000, fromUs: from.getTime() * 1_000 }
  return () => rule
}

/**
 * Returns the slots around a time, by this process's clock. The database decides by its own clock which of them is current. If its time is outside of
 * these slots, the database returns its time, and is asked again.
 */
function cronSlots(expression: unknown, timezone: string): PeriodAt {
  const cron = parseCron(expression, timezone)
  if (cron.nextRuns(1).length + cron.previousRuns(1).length === 0)
    throw new InvalidInputError('cron', `"${expression}" never comes`)
  /** The last result. Cached, because a search takes milliseconds. */
  let known: { readonly from: number; readonly until: number; readonly rule: PeriodRule } | undefined
  return (nowMs) => {
    if (known && nowMs >= known.from && nowMs < known.until) return known.rule
    const before = cron.previousRuns(3, new Date(nowMs + 1_000))
    const last = before.reduce((latest, one) => (one > latest ? one : latest), new Date(0))
    const slots = [...before, ...cron.nextRuns(3, last)].map((slot) => slot.getTime() * 1_000)
    const slotsUs = [...new Set(slots)].sort((a, b) => a - b)
    const rule = { slotsUs }
    // Valid while there is at least one slot on each side.
    known = { from: Number(slotsUs[1]) / 1_000, until: Number(slotsUs.at(-2)) / 1_000, rule }
    return rule
  }
}

function parseCron(expression: unknown, timezone: string): Cron {
  if (typeof expression !== 'string')
    throw new InvalidInputError('cron', `must be a text such as "0 3 * * *", not ${nameGiven(expression)}`)
  try {
    return new Cron(expression, { timezone, paused: true })
  } catch (error) {
    const reason = (error as Error).message.replace(/\.$/, '') // the error message gets its period later
    throw new InvalidInputError('cron', `"${expression}" is no cron expression: ${reason}`)
  }
}
