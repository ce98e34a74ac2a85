import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { throughPool, url } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import { InvalidInputError } from '../errors.js'
import { createTestSchema, type TestSchema } from '../testing/index.js'
import { claim } from './acquire/acquire-claims.js'
import type { PeriodAt, PeriodRule } from './period.js'
import { QuotaSpec } from './quota/quota-spec.js'

const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
let schema: TestSchema
beforeAll(async () => {
  schema = await createTestSchema(pool)
  await (await Dibs.open({ ...throughPool, pool, schema: schema.name })).close()
})
afterAll(async () => {
  await schema.drop()
  await pool.end()
})

interface Found {
  readonly at: number
  readonly slot: string | null
  readonly start: number
  readonly end: number
}

const HOUR = 3_600_000
const DAY = 24 * HOUR

/** The period of each of these moments, in the database. */
async function periodsAt(rule: PeriodRule, moments: readonly number[]): Promise<Found[]> {
  const { name } = schema
  const { rows } = await pool.query(
    `select m.ms as at, p.slot, ${name}.micros(p.starts_at) / 1000.0 as start, ${name}.micros(p.ends_at) / 1000.0 as end
     from unnest($2::bigint[]) with ordinality m(ms, n), ${name}.period_at($1, ${name}.from_micros(m.ms * 1000)) p order by m.n`,
    [JSON.stringify(rule), moments],
  )
  return rows.map(({ at, slot, start, end }) => ({
    ...{ at: Number(at), slot, start: Number(start), end: Number(end) },
  }))
}

async function periodAt(rule: PeriodRule, at: string): Promise<[string | null, string, string]> {
  const [found] = await periodsAt(rule, [Date.parse(at)])
  if (!found) throw new Error('no period')
  return [found.slot, new Date(found.start).toISOString(), new Date(found.end).toISOString()]
}

function periodOf(given: object): PeriodAt {
  return claim.singleton({ scope: 'work', ...given } as never).period
}

const calendar = (per: string, timeZone?: string): PeriodRule => periodOf({ per, timeZone })(0)

/** The local date and time of a zone, from the tables of JavaScript, not of PostgreSQL. */
function clocksOf(zone: string): (at: number) => { date: Date; local: number } {
  const format = new Intl.DateTimeFormat('en-u-ca-iso8601-hc-h23', {
    timeZone: zone,
    ...({ year: 'numeric', month: '2-digit', day: '2-digit' } as const),
    ...({ hour: '2-digit', minute: '2-digit', second: '2-digit' } as const),
  })
  return (at) => {
    const part = Object.fromEntries(format.formatToParts(at).map(({ type, value }) => [type, Number(value)]))
    const { year = 0, month = 1, day = 1, hour = 0, minute = 0, second = 0 } = part
    return {
      date: new Date(Date.UTC(year, month - 1, day)),
      local: Date.UTC(year, month - 1, day, hour, minute, second),
    }
  }
}

/** As the database names it, computed in another way. */
const names = {
  day: (date: Date) => `day:${date.toISOString().slice(0, 10)}`,
  week(date: Date) {
    // The week belongs to the year that its Thursday is in.
    const thursday = new Date(date.getTime() + (3 - ((date.getUTCDay() + 6) % 7)) * DAY)
    const week = 1 + Math.floor((thursday.getTime() - Date.UTC(thursday.getUTCFullYear(), 0, 1)) / DAY / 7)
    return `week:${thursday.getUTCFullYear()}-W${String(week).padStart(2, '0')}`
  },
  month: (date: Date) => `month:${date.toISOString().slice(0, 7)}`,
  year: (date: Date) => `year:${date.toISOString().slice(0, 4)}`,
}

const walked: readonly [zone: string, year: number, ...lengths: number[]][] = [
  ['Europe/Berlin', 2026, 23, 25],
  ['America/New_York', 2026, 23, 25],
  // Back from 01:00 to 00:00: the first hour of the day comes twice.
  ['America/Havana', 2026, 23, 25],
  // No midnight on one day in November, two on one in February.
  ['America/Sao_Paulo', 2018, 23, 25],
  ['Asia/Kolkata', 2026],
  ['Australia/Lord_Howe', 2026, 23.5, 24.5],
  // Back from midnight to 23:00 of the day before.
  ['America/Nuuk', 2026, 23, 25],
]

describe('periods of the calendar', () => {
  it.each(walked)('follow each other through all hours of a year: %s %i', async (zone, year, ...lengths) => {
    const clock = clocksOf(zone)
    const from = Date.UTC(year, 0, 1) - 2 * DAY
    for (const [unit, nameOf] of Object.entries(names)) {
      const step = unit === 'day' ? HOUR : 5 * HOUR
      const moments = Array.from({ length: (370 * DAY) / step }, (_, n) => from + n * step + 7 * 60_000)
      const shown = moments.map(clock)
      const found = await periodsAt(calendar(unit, zone), moments)
      let last: Found | undefined
      const days = new Set<number>()
      found.forEach((period, n) => {
        const { at, slot, start, end } = period
        if (!(start <= at && at < end)) throw new Error(`${at} is not in ${slot}`)
        if (slot !== nameOf(shown[n]?.date ?? new Date(0)))
          throw new Error(`${new Date(at).toISOString()} is not in ${slot}`)
        if (last && slot !== last.slot) {
          if (start !== last.end) throw new Error(`${slot} does not begin where ${last.slot} ends`)
          // A period starts at the first moment whose local date is in it.
          expect([nameOf(clock(start - 1).date), nameOf(clock(start).date)]).toEqual([last.slot, slot])
          days.add((end - start) / HOUR)
        } else if (last && (start !== last.start || end !== last.end)) throw new Error(`${slot} is two`)
        last = period
      })
      if (unit === 'day') expect([...days].sort()).toEqual([24, ...lengths].sort())
    }
  })

  it.each(walked)('are hours of sixty minutes, by the minutes of the zone: %s %i', async (zone, year) => {
    const clock = clocksOf(zone)
    const noons = Array.from({ length: 366 }, (_, n) => Date.UTC(year, 0, 1, 12) + n * DAY)
    const changes = noons.filter((noon) => clock(noon + DAY).local - clock(noon).local !== DAY)
    const moments = (changes.length > 0 ? changes : [Date.UTC(year, 5, 1)]).flatMap((noon) =>
      Array.from({ length: 360 }, (_, n) => noon - DAY + n * 600_000 + 1_000),
    )
    const found = await periodsAt(calendar('hour', zone), moments)
    let last: Found | undefined
    const odd: Found[] = []
    for (const period of found) {
      const { at, slot, start, end } = period
      if (!(start <= at && at < end)) throw new Error(`${at} is not in ${slot}`)
      if (last && slot !== last.slot && start !== last.end && at - last.at < DAY)
        throw new Error(`${slot} overlaps ${last.slot}`)
      // Nothing moves the clocks within it.
      if (clock(end - 1_000).local - clock(start).local !== end - start - 1_000)
        throw new Error(`the clocks move within ${slot}`)
      if (end - start !== HOUR || clock(start).local % HOUR !== 0) odd.push(period)
      last = period
    }
    const halves = new Set(odd.map(({ start, end }) => (end - start) / HOUR))
    expect([...halves]).toEqual(zone === 'Australia/Lord_Howe' ? [0.5] : [])
  })

  it('have 23 and 25 hours where the clocks change', async () => {
    const berlin = calendar('day', 'Europe/Berlin')
    expect(await periodAt(berlin, '2026-03-29T12:00:00Z')).toEqual([
      'day:2026-03-29',
      '2026-03-28T23:00:00.000Z',
      '2026-03-29T22:00:00.000Z',
    ])
    expect(await periodAt(berlin, '2026-10-25T12:00:00Z')).toEqual([
      'day:2026-10-25',
      '2026-10-24T22:00:00.000Z',
      '2026-10-25T23:00:00.000Z',
    ])
    // The first of two midnights, and the moment in place of one that is skipped.
    expect(await periodAt(calendar('day', 'America/Havana'), '2026-11-01T12:00:00Z')).toEqual([
      'day:2026-11-01',
      '2026-11-01T04:00:00.000Z',
      '2026-11-02T05:00:00.000Z',
    ])
    expect(await periodAt(calendar('day', 'America/Sao_Paulo'), '2018-11-04T12:00:00Z')).toEqual([
      'day:2018-11-04',
      '2018-11-04T03:00:00.000Z',
      '2018-11-05T02:00:00.000Z',
    ])
  })

  it('begin once, where the clocks go back to a day that was over', async () => {
    // From 00:01 to 23:01.
    const day = calendar('day', 'America/St_Johns')
    const seventh = ['day:2010-11-07', '2010-11-07T02:30:00.000Z', '2010-11-08T03:30:00.000Z']
    expect(await periodAt(day, '2010-11-07T02:29:59Z')).toEqual([
      'day:2010-11-06',
      '2010-11-06T02:30:00.000Z',
      '2010-11-07T02:30:00.000Z',
    ])
    for (const at of ['02:30:00', '02:30:59', '02:31:00', '03:29:59', '03:30:00'])
      expect(await periodAt(day, `2010-11-07T${at}Z`)).toEqual(seventh)
  })

  it('begin with the skip, where midnight is in the midst of it', async () => {
    // From 23:30 to 00:30.
    const day = calendar('day', 'America/Toronto')
    for (const at of ['1919-03-31T04:30:00Z', '1919-03-31T04:59:59Z', '1919-03-31T05:00:00Z'])
      expect(await periodAt(day, at)).toEqual([
        'day:1919-03-31',
        '1919-03-31T04:30:00.000Z',
        '1919-04-01T04:00:00.000Z',
      ])
    expect((await periodAt(day, '1919-03-31T04:29:59Z'))[0]).toBe('day:1919-03-30')
  })

  it('leave out a day that a zone has left out', async () => {
    const day = calendar('day', 'Pacific/Apia')
    expect(await periodAt(day, '2011-12-30T09:59:59Z')).toEqual([
      'day:2011-12-29',
      '2011-12-29T10:00:00.000Z',
      '2011-12-30T10:00:00.000Z',
    ])
    expect((await periodAt(day, '2011-12-30T10:00:00Z')).slice(0, 2)).toEqual([
      'day:2011-12-31',
      '2011-12-30T10:00:00.000Z',
    ])
  })

  it('are an hour that ends with the first minute of it, where the clocks go back then', async () => {
    const hour = calendar('hour', 'America/St_Johns')
    expect((await periodAt(hour, '2010-11-07T02:30:30Z')).slice(1)).toEqual([
      '2010-11-07T02:30:00.000Z',
      '2010-11-07T02:31:00.000Z',
    ])
    expect((await periodAt(hour, '2010-11-07T02:31:00Z')).slice(1)).toEqual([
      '2010-11-07T02:31:00.000Z',
      '2010-11-07T03:30:00.000Z',
    ])
  })

  it('are two hours where an hour comes twice', async () => {
    const hour = calendar('hour', 'Europe/Berlin')
    const slots = await periodsAt(hour, [
      Date.parse('2026-10-25T00:30:00Z'),
      Date.parse('2026-10-25T01:30:00Z'),
    ])
    expect(slots.map(({ slot }) => slot)).toEqual([
      'hour:2026-10-25T00:00:00.000Z',
      'hour:2026-10-25T01:00:00.000Z',
    ])
  })

  it('end and begin with the very microsecond', async () => {
    const { rows } = await pool.query(
      `select p.slot from unnest(array['2026-03-01 22:59:59.999999Z', '2026-03-01 23:00:00Z']::timestamptz[]) at,
         ${schema.name}.period_at($1, at) p`,
      [JSON.stringify(calendar('day', 'Europe/Berlin'))],
    )
    expect(rows.map(({ slot }) => slot)).toEqual(['day:2026-03-01', 'day:2026-03-02'])
  })

  it('do not depend on the zone of the session', async () => {
    const client = await pool.connect()
    try {
      await client.query("begin; set local time zone 'Asia/Tokyo'")
      const { rows } = await client.query(
        `select slot from ${schema.name}.period_at($1, '2026-03-01 22:30:00Z')`,
        [JSON.stringify(calendar('day', 'Europe/Berlin'))],
      )
      expect(rows).toEqual([{ slot: 'day:2026-03-01' }])
      await client.query('rollback')
    } finally {
      client.release()
    }
  })
})

describe('intervals', () => {
  it('follow each other from 1970, or from the time that is given, and before it', async () => {
    const rules = [
      periodOf({ perMs: 90_000 })(0),
      periodOf({ perMs: 7 * DAY, from: new Date('2026-01-05T08:30:00Z') })(0),
      periodOf({ perMs: 1_001, from: new Date('2030-01-01T00:00:00.003Z') })(0),
    ] as { everyUs: number; fromUs: number }[]
    for (const rule of rules) {
      const [every, from] = [rule.everyUs / 1_000, rule.fromUs / 1_000]
      const moments = Array.from({ length: 400 }, (_, n) => from + (n - 200) * Math.floor(every / 3))
      for (const { at, slot, start, end } of await periodsAt(rule, moments)) {
        expect(start).toBe(from + Math.floor((at - from) / every) * every)
        expect(end).toBe(start + every)
        expect(slot).toBe(`slot:${new Date(start).toISOString()}`)
      }
    }
  })
})

describe('slots of a cron expression', () => {
  it.each([
    ['Europe/Berlin', 2026],
    ['Australia/Lord_Howe', 2026],
  ])('follow each other through a year: %s', async (zone, year) => {
    const clock = clocksOf(zone)
    const period = periodOf({ per: { cron: '30 4 * * *' }, timeZone: zone })
    let end: number | undefined
    for (let at = Date.UTC(year, 0, 1); at < Date.UTC(year + 1, 0, 1); at += 23 * HOUR) {
      const [found] = await periodsAt(period(at), [at])
      if (!found) throw new Error('no slot')
      expect(found.start <= at && at < found.end).toBe(true)
      for (const edge of [found.start, found.end]) expect(clock(edge).local % DAY).toBe(4.5 * HOUR)
      if (end !== undefined) expect([found.start, found.end]).toContain(end)
      end = found.end
    }
  })

  it('have none for a moment that the list does not reach', async () => {
    const rule = periodOf({ per: { cron: '0 * * * *' } })(Date.UTC(2026, 0, 1))
    const { rows } = await pool.query(
      `select p.* from unnest(array['2020-01-01', '2040-01-01']::timestamptz[]) at, ${schema.name}.period_at($1, at) p`,
      [JSON.stringify(rule)],
    )
    expect(rows).toEqual(Array(2).fill({ slot: null, starts_at: null, ends_at: null }))
  })

  it('are known on both sides of what this process takes for the time', async () => {
    const at = Date.UTC(2026, 0, 1, 12, 0, 0)
    const rule = periodOf({ per: { cron: '0 * * * *' } })(at)
    for (const off of [-90 * 60_000, -1, 0, 1, 90 * 60_000]) {
      const [found] = await periodsAt(rule, [at + off])
      expect(found?.start).toBe(Math.floor((at + off) / HOUR) * HOUR)
      expect(found?.end).toBe((found?.start ?? 0) + HOUR)
    }
  })
})

describe('what is no period', () => {
  const refusals: [name: string, field: string, given: object][] = [
    ['an unknown unit', 'per', { per: 'fortnight' }],
    ['nothing that is known', 'per', { per: null }],
    ['a zone that does not exist', 'timeZone', { per: 'day', timeZone: 'Europe/Atlantis' }],
    ['an offset, which means the opposite to PostgreSQL', 'timeZone', { per: 'day', timeZone: '+01:00' }],
    [
      'an abbreviation, which means something else to PostgreSQL',
      'timeZone',
      { per: 'day', timeZone: 'IST' },
    ],
    ['an abbreviation without a summer', 'timeZone', { per: 'day', timeZone: 'CET' }],
    ['a zone that is no text', 'timeZone', { per: 'day', timeZone: 1 }],
    ['an empty zone', 'timeZone', { per: 'day', timeZone: '' }],
    ['no length', 'perMs', { perMs: 0 }],
    ['NaN', 'perMs', { perMs: Number.NaN }],
    ['a fraction', 'perMs', { perMs: 1.5 }],
    ['a negative length', 'perMs', { perMs: -1 }],
    ['a length beside a period', 'perMs', { per: 'day', perMs: 1 }],
    ['a start without a length', 'from', { per: 'day', from: new Date() }],
    ['a zone without a period', 'timeZone', { timeZone: 'UTC' }],
    ['a start that is no date', 'from', { perMs: 1, from: '2026-01-01' }],
    ['a start that is no time', 'from', { perMs: 1, from: new Date(Number.NaN) }],
    ['an interval with a zone', 'timeZone', { perMs: 1, timeZone: 'UTC' }],
    ['a bad cron expression', 'cron', { per: { cron: 'every day' } }],
    ['a cron expression that is no text', 'cron', { per: { cron: 5 } }],
    ['a cron expression with a misspelled option', 'zone', { per: { cron: '* * * * *', zone: 'UTC' } }],
  ]
  it.each(refusals)('%s', (_, field, given) => {
    expect(() => claim.singleton({ scope: 'work', ...given } as never)).toThrow(
      expect.objectContaining({ name: InvalidInputError.name, field }),
    )
  })

  it('a cron expression, where there are no slots', () => {
    expect(() => new QuotaSpec('work', { limit: 1, per: { cron: '* * * * *' } as never })).toThrow(
      /must be 'hour', 'day', 'week', 'month' or 'year', not .*; for a length in milliseconds give `perMs`/,
    )
  })

  it.each(['UTC', 'gmt', 'Europe/Berlin', 'america/argentina/buenos_aires', 'Etc/GMT+5'])(
    'but %s is',
    (zone) => {
      expect(calendar('day', zone)).toEqual({ unit: 'day', zone })
    },
  )
})
