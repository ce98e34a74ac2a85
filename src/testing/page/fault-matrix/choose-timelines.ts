import type { CrashPoint } from '../../crash/report/report.js'
import type { Html } from '../html.js'
import { cellId, isFailed } from './cells.js'
import { baselineOf } from './fold-repeats.js'
import { showTimeline } from './timeline.js'

/** The maximum length of all timelines of a page. A small report fits whole, and a browser opens this much at once. */
const MAX_CHARACTERS = 1_500_000

/** How many of these characters the points that passed may use. */
const FOR_PASSED = 500_000

/** The timelines by point. A point without one would make the page too large. */
export type Timelines = ReadonlyMap<CrashPoint, Html>

/**
 * Chooses the timelines of a page while there is space, in this order: one of each failure, one of each cell, all that
 * fail, one of each mode and recovery path, all others.
 */
export function chooseTimelines(points: readonly CrashPoint[]): Timelines {
  const chosen = new Map<CrashPoint, Html>()
  const baseline = baselineOf(points[0]?.story ?? [])
  let left = MAX_CHARACTERS
  const add = (some: readonly CrashPoint[], reserved = 0): void => {
    for (const point of some) {
      if (left <= reserved) return
      if (chosen.has(point)) continue
      const timeline = showTimeline(point, point.fault ? baseline : undefined)
      chosen.set(point, timeline)
      left -= timeline.text.length
    }
  }
  const failed = points.filter(isFailed)
  add(points.slice(0, 1))
  add(firstOfEach(failed, failureOf), FOR_PASSED)
  add(firstOfEach(failed, cellOf), FOR_PASSED)
  add(firstOfEach(points, cellOf))
  add(failed)
  add(firstOfEach(points, ({ fault, path }) => `${fault?.mode} ${path}`))
  add(points)
  return chosen
}

const cellOf = ({ fault }: CrashPoint): string => (fault ? cellId(fault) : '')

/** The failure in full, to tell different failures apart. */
export const failureOf = ({ failure }: CrashPoint): string => `${failure?.kind}: ${failure?.message}`

/** The first point of each kind, in order. */
export function firstOfEach(
  points: readonly CrashPoint[],
  kindOf: (point: CrashPoint) => string,
): readonly CrashPoint[] {
  const seen = new Set<string>()
  return points.filter((point) => {
    const kind = kindOf(point)
    return !seen.has(kind) && seen.add(kind)
  })
}
