import { findLinks } from '../src/testing/explore/report/links.js'
import type { ExploreReport, FoundRace } from '../src/testing/explore/report/report.js'
import type { Effect, TraceStep } from '../src/testing/explore/schedule/trace.js'

/** The effect of a statement that returns rows. */
export const rows = (tag: string, ...values: (string | null)[][]): Effect => ({
  kind: 'done',
  result: { tag, rows: values, rowCount: values.length },
})
export const failed = (code: string, message: string): Effect => ({
  kind: 'done',
  result: { tag: '', rows: [], rowCount: 0, error: { code, message } },
})
export const waitsFor = (...units: string[]): Effect => ({
  kind: 'waits',
  for: units,
  what: 'row lock, stock',
})

export function madeStep(
  unit: string,
  text: string,
  effect: Effect,
  more: Partial<TraceStep> = {},
): TraceStep {
  return {
    unit,
    text,
    statement: text,
    settings: [],
    values: [],
    effect,
    resumed: [],
    waiters: 0,
    options: [unit],
    poolWaits: {},
    ...more,
  }
}

/** A report as `explore` makes it, of invented steps. */
export function madeReport(steps: readonly TraceStep[], race: Partial<FoundRace> = {}): ExploreReport {
  return {
    verdict: 'race',
    mode: 'search',
    summary: 'Race found in schedule 3 (2 switches, READ COMMITTED).',
    schedules: 3,
    reduction: { off: null, repeats: 1, widened: [] },
    isComplete: false,
    isExhaustive: false,
    preemptions: null,
    actors: [...new Set(steps.map(({ unit }) => unit.replace(/\/\d+$/, '')))],
    steps: steps.length,
    isolation: 'read committed',
    tookMs: 120,
    notes: [],
    race: {
      schedule: steps.map(({ unit }) => unit),
      replay: 'v1:abba:01020304',
      steps,
      links: findLinks(steps),
      printout: 'Race found in schedule 3 (2 switches, READ COMMITTED).',
      failure: { name: 'Error', message: 'amount is -1' },
      turn: { step: 1, text: 'here it goes wrong: bob comes between' },
      isSerial: false,
      ...race,
    },
  }
}

/** Two actors that take the last lamp. The second waits for the first. */
export function lastLamp(): ExploreReport {
  const both = ['alice', 'bob']
  const read = (unit: string) =>
    madeStep(unit, 'begin; select amount\n      from stock\n      where sku = $1', rows('SELECT 1', ['1']), {
      values: ['lamp'],
      options: both,
      settings: [`set local work_mem = '8MB'`],
    })
  const take = (unit: string, effect: Effect) =>
    madeStep(unit, 'update stock set amount = amount - 1 where sku = $1', effect, {
      values: ['lamp'],
      options: both,
    })
  const steps = [
    read('alice'),
    read('bob'),
    take('bob', rows('UPDATE 1')),
    take('alice', waitsFor('bob')),
    madeStep('bob', 'commit', rows('COMMIT'), {
      resumed: [{ unit: 'alice', effect: rows('UPDATE 1') }],
      waiters: 1,
    }),
    madeStep('alice', 'commit', rows('COMMIT')),
  ]
  const links = [
    ...findLinks(steps),
    { kind: 'misses', from: 4, to: 0, what: 'stock (lamp)' },
    { kind: 'reads', from: 4, to: 3, what: 'stock (lamp)' },
  ] as const
  return madeReport(steps, {
    links,
    anomaly: { name: 'lost update', explanation: 'alice decides on what bob has changed meanwhile.' },
  })
}
