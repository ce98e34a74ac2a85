import { findPauses, type Pause } from '../../explore/report/pauses.js'
import type { FoundRace } from '../../explore/report/report.js'
import { actorOf, IMPLICIT_COMMIT, type TraceStep } from '../../explore/schedule/trace.js'

/** The positions of all parts of a schedule. Each connection has a lane, and time runs down. */
export interface ScheduleLayout {
  readonly lanes: readonly Lane[]
  readonly rows: readonly Row[]
  readonly pauses: readonly Pause[]
  /** The slot of the failure, after all steps. */
  readonly endSlot: number
}

export interface Lane {
  readonly unit: string
  /** The connections of one actor share a color. */
  readonly color: number
  /** The indexes of its first and its last step. */
  readonly first: number
  readonly last: number
}

export interface Row {
  readonly index: number
  readonly step: TraceStep
  readonly lane: number
  /** The number of the step within its connection, from 1. */
  readonly number: number
  /** The line of the step if all lanes share one column. Each aside takes one more. */
  readonly slot: number
  readonly asides: readonly Aside[]
  /** The pool connection that the step's actor waits for. */
  readonly pool?: string | undefined
  /** The failure at this step. */
  readonly turn?: string | undefined
  readonly isImplicit: boolean
}

/** An effect of a step in another lane. */
export interface Aside {
  readonly lane: number
  readonly slot: number
  /** The result of a statement that waited there. */
  readonly resumed?: TraceStep['resumed'][number] | undefined
  /** The index of that statement's step. */
  readonly of?: number | undefined
  /** The pool connection that the lane's actor waits for. */
  readonly pool?: string | undefined
}

/** The number of colors in the styles. */
const COLORS = 6

export function layOutSchedule({ steps, turn }: FoundRace, actors: readonly string[]): ScheduleLayout {
  const lanes = findLanes(steps, actors)
  const numbers = new Map<string, number>()
  const last = new Map<string, number>()
  let slot = 0
  const rows = steps.map((step, index): Row => {
    const number = (numbers.get(step.unit) ?? 0) + 1
    numbers.set(step.unit, number)
    last.set(step.unit, index)
    const own = slot++
    const waits = new Map(Object.entries(step.poolWaits)) // an actor may be called `constructor`
    const asides = lanes.flatMap(({ unit }, lane): Omit<Aside, 'slot'>[] => {
      const resumed = step.resumed.find((other) => other.unit === unit)
      const pool = unit === step.unit ? undefined : waits.get(unit)
      return resumed || pool ? [{ lane, resumed, of: resumed && last.get(unit), pool }] : []
    })
    return {
      index,
      step,
      lane: lanes.findIndex(({ unit }) => unit === step.unit),
      number,
      slot: own,
      asides: asides.map((aside) => ({ ...aside, slot: slot++ })),
      pool: waits.get(step.unit),
      turn: turn?.step === index ? turn.text : undefined,
      isImplicit: step.statement === IMPLICIT_COMMIT,
    }
  })
  return { lanes, rows, pauses: findPauses(steps), endSlot: slot }
}

/** Orders the lanes by actor, then by connection. */
function findLanes(steps: readonly TraceStep[], actors: readonly string[]): Lane[] {
  const spans = new Map<string, { first: number; last: number }>()
  const touch = (unit: string, i: number): void => {
    spans.set(unit, { first: spans.get(unit)?.first ?? i, last: i })
  }
  for (const [i, { unit, resumed, poolWaits }] of steps.entries())
    for (const each of [unit, ...resumed.map((other) => other.unit), ...Object.keys(poolWaits)])
      touch(each, i)
  const known = [...new Set([...actors, ...[...spans.keys()].map(actorOf)])]
  const connection = (unit: string): number => Number(unit.slice(actorOf(unit).length + 1) || 1)
  return [...spans]
    .map(([unit, span]) => ({ unit, color: known.indexOf(actorOf(unit)) % COLORS, ...span }))
    .toSorted(
      (a, b) =>
        known.indexOf(actorOf(a.unit)) - known.indexOf(actorOf(b.unit)) ||
        connection(a.unit) - connection(b.unit),
    )
}
