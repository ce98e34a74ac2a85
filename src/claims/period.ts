import { Cron } from 'croner'
import { InvalidInputError } from '../errors.js'
import { checkZone } from '../options/check-zone.js'
import { nameGiven, showGiven } from '../options/name-given.js'
import { duration } from '../options/number-options.js'
import { checked, required } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { date, list } from '../options/value-options.js'

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

/** Like `PeriodOptions`, but one of `per` and `perMs` is required. */
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

/** A period in the form that the SQL function `period` reads. */
export type PeriodRule =
  | { readonly unit: CalendarUnit; readonly zone: string }
  | { readonly everyUs: number; readonly fromUs: number }
  | { readonly slotsUs: readonly number[] }

/** Returns the rule at a time. Only the slots of a cron expression depend on the time. */
export type PeriodAt = (nowMs: number) => PeriodRule

const units: readonly unknown[] = ['hour', 'day', 'week', 'month', 'year'] satisfies CalendarUnit[]

export const timeZoneField = checked<string>((_, zone) => checkZone(zone), {
  bounds: 'a name such as `Europe/Berlin`',
})

/** The options that define a period. */
export const periodFields = {
  per: checked<CalendarUnit>(checkUnit),
  timeZone: timeZoneField,
  perMs: duration(),
  from: date(),
}

/** The options that define a period, which may be that of a cron expression. */
export const slotFields = { ...periodFields, per: checked<CalendarUnit | CronSlots>(checkUnitOrCron) }

function checkUnit(field: string, per: unknown): void {
  if (!units.includes(per)) throw refusePeriod(field, per, [])
}

function checkUnitOrCron(field: string, per: unknown): void {
  if (units.includes(per)) return
  if (typeof per !== 'object' || per === null || !('cron' in per))
    throw refusePeriod(field, per, ['{ cron }'])
  cronFields.read(per as CronSlots)
}

const cronFields = optionTable<CronSlots>()('per', { cron: required(checked<string>(checkCronText)) })

function checkCronText(field: string, expression: unknown): void {
  if (typeof expression !== 'string')
    throw new InvalidInputError(field, `must be a string such as "0 3 * * *", not ${nameGiven(expression)}`)
}

function refusePeriod(field: string, per: unknown, others: readonly string[]): InvalidInputError {
  const expected = list([...units.map((unit) => `'${unit}'`), ...others])
  return new InvalidInputError(
    field,
    `must be ${expected}, not ${showGiven(per)}; for a length in milliseconds give \`perMs\``,
  )
}

/** Makes the period of checked options. Returns undefined if the caller gave none. */
export function readPeriod({
  per,
  timeZone,
  perMs,
  from,
}: PeriodOptions<CalendarUnit | CronSlots>): PeriodAt | undefined {
  if (perMs !== undefined) {
    if (per !== undefined)
      throw new InvalidInputError('perMs', 'must not be given with `per`: give one of them')
    if (timeZone !== undefined)
      throw new InvalidInputError(
        'timeZone',
        'must not be given with `perMs`: it is for periods of the calendar',
      )
    const rule = { everyUs: perMs * 1_000, fromUs: (from?.getTime() ?? 0) * 1_000 }
    return () => rule
  }
  if (from !== undefined) throw new InvalidInputError('from', 'must be given with `perMs` only')
  if (per === undefined) {
    if (timeZone !== undefined) throw new InvalidInputError('timeZone', 'must be given with `per` only')
    return undefined
  }
  const zone = timeZone ?? 'UTC'
  if (typeof per === 'object') return cronSlots(per.cron, zone)
  const rule = { unit: per, zone }
  return () => rule
}

/**
 * Returns the slots around a time, by this process's clock. The database decides by its own clock which of them is current. If
 * its time is outside of these slots, the database returns its time, and the caller computes the slots around that time.
 */
function cronSlots(expression: string, timezone: string): PeriodAt {
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

function parseCron(expression: string, timezone: string): Cron {
  try {
    return new Cron(expression, { timezone, paused: true })
  } catch (error) {
    const reason = (error as Error).message.replace(/\.$/, '') // the error message gets its period later
    throw new InvalidInputError('cron', `"${expression}" is no cron expression: ${reason}`)
  }
}
