import { areOfOneActor, type Course, type Move } from './course.js'
import { conflictAny, type Footprint, KEY_SHARE, meetAny, shares } from './footprint.js'

/** What was learned on the way and holds for every schedule. */
export interface Levels {
  /** Some transaction may be at REPEATABLE READ. */
  readonly isRepeatable: boolean
  /** Somebody takes the rows of this table in the order in which they lie there. */
  isDisordered(table: string): boolean
  /** Somebody looks at times in this table. */
  isTimed(table: string): boolean
  /** What the unit does depends on when its transaction began or first wrote, and somebody looks at that. */
  isClocked(unit: string): boolean
  /** Somebody looks at times somewhere. */
  readonly hasTimes: boolean
  /**
   * Texts of statements with a condition, for which it makes a difference whether they wait for a row: they did not wait for
   * one that others had locked and that did not meet it, or did, and hold the lock of a row that does not meet it any more.
   */
  readonly eager: ReadonlySet<string>
}

/** A reason why the order of two steps of different actors may matter. Asked both ways round. */
export interface DependentPair {
  readonly name: string
  readonly holds: (a: Move, b: Move, course: Course, levels: Levels) => boolean
}

/**
 * When the order of two steps matters at READ COMMITTED, and what REPEATABLE READ adds to it. Whatever is not here
 * commutes: two reads; a read and a write that is not committed; two inserts of different keys; a write by key and the
 * COMMIT that it may have to wait for, since it finds the same row and checks it anew, whether it waits or comes later.
 */
export const DEPENDENT_PAIRS: readonly DependentPair[] = [
  {
    name: 'one that may do anything',
    holds: ({ footprint, unit }, _b, course) =>
      footprint.everything !== undefined ||
      (footprint.ends !== undefined && course.of(unit).done.everything !== undefined),
  },
  {
    name: 'a read, and the commit of what it reads',
    holds: ({ footprint }, b, course, { eager }) => {
      const published = publishedBy(b, course)
      const reads = eager.has(footprint.text ?? '')
        ? [...footprint.reads, ...footprint.conditional]
        : footprint.reads
      return published !== undefined && meetAny(reads, [...published.adds, ...published.changes])
    },
  },
  {
    name: 'a search for a row by its key, and the commit that adds it',
    holds: ({ footprint }, b, course) => {
      const published = publishedBy(b, course)
      const sought = footprint.locks.flatMap(({ place, seeks }) => (seeks ? place : []))
      return published !== undefined && meetAny(sought, published.adds)
    },
  },
  {
    name: 'a lock, and a lock',
    holds: (a, b, course) => conflictAny(course.newLocks(a), course.newLocks(b)),
  },
  {
    name: 'a look whether a lock is free, and whoever may free it',
    holds: ({ footprint }, b, course) =>
      footprint.tries.length > 0 &&
      behind(b.unit, course).some((unit) => {
        const { everything, locks } = course.of(unit).done
        return (
          everything !== undefined ||
          meetAny(
            footprint.tries,
            locks.map(({ place }) => place),
          )
        )
      }),
  },
  {
    name: 'two that close a circle of waits',
    holds: (a, b, course) => reaches(a, b, course) && reaches(b, a, course),
  },
  {
    name: 'two numbers of one sequence',
    holds: (a, b) => shares(a.footprint.draws, b.footprint.draws),
  },
  {
    name: 'rows put into a table whose order somebody sees',
    // One that waits meets the rows where they lay before, one that comes later where they lie then.
    holds: (a, b, course, levels) => {
      const put = publishedBy(b, course)?.puts ?? b.footprint.puts
      const met = b.footprint.ends ? a.footprint.touches : a.footprint.puts
      return [...met].some((table) => put.has(table) && levels.isDisordered(table))
    },
  },
  {
    name: 'two times that somebody looks at',
    holds: (a, b, course, levels) =>
      isTimed(a, course, levels) &&
      (isTimed(b, course, levels) || (levels.hasTimes && b.footprint.asksForTime === true)),
  },
  {
    name: 'the snapshot of a transaction, and a commit',
    holds: ({ unit }, b, course, { isRepeatable }) => {
      const published = isRepeatable && !course.of(unit).hasSnapshot ? publishedBy(b, course) : undefined
      return published !== undefined && published.adds.length + published.changes.length > 0
    },
  },
]

/** It writes the time; or it begins a transaction, or is the first to write in it, of one whose time counts. */
function isTimed({ unit, footprint }: Move, course: Course, levels: Levels): boolean {
  if (levels.hasTimes && footprint.tellsTime) return true
  if ([...footprint.stamps].some((table) => levels.isTimed(table))) return true
  if (footprint.ends !== undefined || !levels.isClocked(unit)) return false
  const { hasBegun, done } = course.of(unit)
  const writes = ({ locks, puts }: Footprint): boolean => locks.length + puts.size > 0
  return !hasBegun || (writes(footprint) && !writes(done))
}

/** What a step shows to others, if it is a COMMIT. */
function publishedBy({ unit, footprint }: Move, course: Course): Footprint | undefined {
  return footprint.ends === 'commit' ? course.of(unit).done : undefined
}

const behind = (unit: string, course: Course): readonly string[] =>
  course.behind(unit, (waiter, holder) => waitsFor(waiter, waitingOf(waiter, course), holder, course))

const waitingOf = (unit: string, course: Course): Footprint | undefined => course.of(unit).waiting

/** Somebody else has what the step wants, so that it will probably wait. */
export const mayWait = ({ unit, footprint }: Move, course: Course): boolean =>
  course.units.some((other) => waitsFor(unit, footprint, other, course))

/** `waiter` wants what `holder` has, or wants too and asked for first. */
function waitsFor(waiter: string, wants: Footprint | undefined, holder: string, course: Course): boolean {
  if (!wants || waiter === holder) return false
  const { done } = course.of(holder)
  if (done.everything !== undefined) return true
  return wants.everything === undefined ? conflictAny(wants.locks, done.locks) : done.locks.length > 0
}

/** If both steps are taken, the one may come to wait for the other, perhaps behind others who wait already. */
function reaches(from: Move, to: Move, course: Course): boolean {
  const wants = (unit: string): Footprint | undefined =>
    unit === from.unit ? from.footprint : unit === to.unit ? to.footprint : waitingOf(unit, course)
  const seen = new Set([from.unit])
  for (const unit of seen) {
    if (unit === to.unit) return true
    for (const next of course.units) if (waitsFor(unit, wants(unit), next, course)) seen.add(next)
  }
  return false
}

/** The order of the two may matter from here. */
export function areDependent(
  a: Move,
  b: Move,
  course: Course,
  levels: Levels,
  pairs: readonly DependentPair[] = DEPENDENT_PAIRS,
): boolean {
  const others = withThoseBehind(b, course, levels)
  return withThoseBehind(a, course, levels).some((one) =>
    others.some(
      (other) =>
        areOfOneActor(one.unit, other.unit) ||
        pairs.some(({ holds }) => holds(one, other, course, levels) || holds(other, one, course, levels)),
    ),
  )
}

/** A step, and what others go on with if it frees what they wait for. */
function withThoseBehind(move: Move, course: Course, levels: Levels): readonly Move[] {
  const going = behind(move.unit, course).flatMap((unit): Move[] => {
    const footprint = waitingOf(unit, course)
    return footprint && !isAsLater(footprint, levels) ? [{ unit, footprint }] : []
  })
  return [move, ...going]
}

/** It has done nothing when it comes to wait, and has all it wants when it goes on: as if it had come then. */
function isAsLater(footprint: Footprint, levels: Levels): boolean {
  const { everything, text = '', locks, reads, draws, puts, asksForTime } = footprint
  // An UPDATE has the entries of keys that it leaves, and never waits for them.
  const [lock, ...more] = locks.filter(({ seeks, strength }) => seeks || strength > KEY_SHARE)
  return (
    everything === undefined &&
    !asksForTime &&
    !levels.eager.has(text) &&
    lock?.place.keys?.size === 1 &&
    more.length + reads.length + draws.size === 0 &&
    (lock.seeks || ![...puts].some((table) => levels.isDisordered(table)))
  )
}
