import { actorOf, IMPLICIT_COMMIT, type TraceStep } from '../../schedule/trace.js'
import { findPauses, type Pause } from '../pauses.js'
import type { ExploreReport, FoundRace } from '../report.js'

/** Where everything of a schedule has its place: a lane for each unit, time going down. */
export interface Layout {
  readonly lanes: readonly Lane[]
  readonly rows: readonly Row[]
  readonly pauses: readonly Pause[]
  /** Where the failure stands, after all steps; in slots. */
  readonly endSlot: number
}

export interface Lane {
  readonly unit: string
  /** Which of the colors: those of one actor share one. */
  readonly color: number
  /** Its first and its last step, by index. */
  readonly first: number
  readonly last: number
}

export interface Row {
  readonly index: number
  readonly step: TraceStep
  readonly lane: number
  /** Which of its unit's steps it is, from 1. */
  readonly number: number
  /** Its line where all lanes share one column; one more for each of its asides. */
  readonly slot: number
  readonly asides: readonly Aside[]
  /** What its own actor waits for at its pool. */
  readonly pool?: string | undefined
  /** What went wrong here, in words. */
  readonly turn?: string | undefined
  readonly isImplicit: boolean
}

/** What a step brought about in another lane. */
export interface Aside {
  readonly lane: number
  readonly slot: number
  /** What became of a statement that had waited there. */
  readonly resumed?: TraceStep['resumed'][number] | undefined
  /** The step of that statement, by index. */
  readonly of?: number | undefined
  /** What its actor waits for at its pool. */
  readonly pool?: string | undefined
}

/** As many as the style has. */
const COLORS = 6

export function layOut({ steps, turn }: FoundRace, { actors }: ExploreReport): Layout {
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

/** In the order of the actors, and of each one's connections. */
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
