import type { Html } from '../../../page/html.js'
import type { CrashPoint } from '../report.js'
import { cellId, isFailed } from './cells.js'
import { usualOf } from './fold.js'
import { showTale } from './show-tale.js'

/** As many characters of stories as one page has. All of a small report fits, and a browser opens this much at once. */
const MOST_CHARACTERS = 1_500_000

/** So many of them are left for what went right. */
const FOR_PASSED = 500_000

/** Stories by point. Those that are missing would make the page too large. */
export type Stories = ReadonlyMap<CrashPoint, Html>

/**
 * Which stories the page tells, as long as there is room: of every failure one, of every cell of the table one, then all that
 * fail, of every mode and way of recovery one, and all others.
 */
export function tellStories(points: readonly CrashPoint[]): Stories {
  const told = new Map<CrashPoint, Html>()
  const usual = usualOf(points[0]?.story ?? [])
  let room = MOST_CHARACTERS
  const tell = (some: readonly CrashPoint[], least = 0): void => {
    for (const point of some) {
      if (room <= least) return
      if (told.has(point)) continue
      const story = showTale(point, point.fault ? usual : undefined)
      told.set(point, story)
      room -= story.text.length
    }
  }
  const failed = points.filter(isFailed)
  tell(points.slice(0, 1))
  tell(firstOfEach(failed, failureOf), FOR_PASSED)
  tell(firstOfEach(failed, cellOf), FOR_PASSED)
  tell(firstOfEach(points, cellOf))
  tell(failed)
  tell(firstOfEach(points, ({ fault, path }) => `${fault?.mode} ${path}`))
  tell(points)
  return told
}

const cellOf = ({ fault }: CrashPoint): string => (fault ? cellId(fault) : '')

/** What went wrong, in full. */
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
