import { conflictAny, type Footprint, intersects, KEY_SHARE, overlapAny } from '../footprint/footprint.js'
import { type Execution, isSameActor, type Transition } from './execution.js'
import type { LearnedFacts } from './learned-facts.js'

/** A reason why the order of two steps of different actors may matter. `areDependent` applies it to both (a, b) and (b, a). */
export interface DependenceRule {
  readonly name: string
  readonly holds: (a: Transition, b: Transition, execution: Execution, facts: LearnedFacts) => boolean
}

/**
 * All reasons why the order of two steps may matter at READ COMMITTED. The last rule is for REPEATABLE READ. All other pairs
 * are independent:
 *
 * - two reads
 * - a read and a write that is not committed
 * - two inserts of different keys
 * - a write by key and the COMMIT for which it may wait, since the write checks the newest version of the row either way
 */
export const DEPENDENCE_RULES: readonly DependenceRule[] = [
  {
    name: 'a step that may do anything',
    holds: ({ footprint, unit }, _b, execution) =>
      footprint.unboundedBecause !== undefined || // guard: explorer.reduce-unread
      (footprint.ends !== undefined && execution.stateOf(unit).performed.unboundedBecause !== undefined),
  },
  {
    name: 'a read, and the commit of what it reads',
    holds: ({ footprint }, b, execution, { waitDependentTexts }) => {
      const published = publishedBy(b, execution)
      const reads = waitDependentTexts.has(footprint.text ?? '')
        ? [...footprint.reads, ...footprint.conditionalRows]
        : footprint.reads
      return published !== undefined && overlapAny(reads, [...published.inserts, ...published.changes])
    },
  },
  {
    name: 'a search for a row by its key, and the commit that inserts it',
    holds: ({ footprint }, b, execution) => {
      const published = publishedBy(b, execution)
      const soughtRows = footprint.locks.flatMap(({ resource, isOfExistingRow }) =>
        isOfExistingRow ? resource : [],
      )
      return published !== undefined && overlapAny(soughtRows, published.inserts)
    },
  },
  {
    name: 'a lock, and a lock',
    holds: (a, b, execution) => conflictAny(execution.newLocks(a), execution.newLocks(b)),
  },
  {
    name: 'an attempt to lock without a wait, and a step that may release the lock',
    holds: ({ footprint }, b, execution) =>
      footprint.lockProbes.length > 0 &&
      withWaiters(b.unit, execution).some((unit) => {
        const { unboundedBecause, locks } = execution.stateOf(unit).performed
        return (
          unboundedBecause !== undefined || // guard: explorer.reduce-hidden-lock
          overlapAny(
            footprint.lockProbes,
            locks.map(({ resource }) => resource),
          )
        )
      }),
  },
  {
    name: 'two steps that close a cycle of waits',
    holds: (a, b, execution) => mayWaitFor(a, b, execution) && mayWaitFor(b, a, execution),
  },
  {
    name: 'two numbers of one sequence',
    holds: (a, b) => intersects(a.footprint.sequences, b.footprint.sequences),
  },
  {
    name: 'row versions of a table whose physical order is read',
    // A statement that waits keeps the order in which it scanned the rows before the wait. A later statement scans them in
    // the order of that time.
    holds: (a, b, execution, facts) => {
      const written = publishedBy(b, execution)?.versionTables ?? b.footprint.versionTables
      const used = b.footprint.ends ? a.footprint.tables : a.footprint.versionTables
      return [...used].some((table) => written.has(table) && facts.isOrderSensitive(table))
    },
  },
  {
    name: 'two times that some statement reads',
    holds: (a, b, execution, facts) =>
      setsReadTime(a, execution, facts) &&
      (setsReadTime(b, execution, facts) ||
        (facts.hasTimeSensitiveTables && b.footprint.readsClock === true)),
  },
  {
    name: 'the snapshot of a transaction, and a commit',
    holds: ({ unit }, b, execution, { hasRepeatableRead }) => {
      const published =
        hasRepeatableRead && !execution.stateOf(unit).hasSnapshot ? publishedBy(b, execution) : undefined
      return published !== undefined && published.inserts.length + published.changes.length > 0
    },
  },
]

/**
 * True if the moment of the step decides a time that some statement reads: the step writes or returns the time. If the start
 * time of the unit's transactions is read, two more steps count: the first of a transaction, and its first write, which draws
 * the transaction id.
 */
function setsReadTime({ unit, footprint }: Transition, execution: Execution, facts: LearnedFacts): boolean {
  if (facts.hasTimeSensitiveTables && footprint.returnsClock) return true
  if ([...footprint.timestampedTables].some((table) => facts.isTimeSensitive(table))) return true
  if (footprint.ends !== undefined || !facts.isStartTimeRead(unit)) return false
  const { hasBegun, performed } = execution.stateOf(unit)
  const writes = ({ locks, versionTables }: Footprint): boolean => locks.length + versionTables.size > 0
  return !hasBegun || (writes(footprint) && !writes(performed))
}

/** The footprint that a COMMIT makes visible to other units; undefined for any other step. */
function publishedBy({ unit, footprint }: Transition, execution: Execution): Footprint | undefined {
  return footprint.ends === 'commit' ? execution.stateOf(unit).performed : undefined
}

/** The unit, and all units that wait for it, directly or through other waiting units. */
const withWaiters = (unit: string, execution: Execution): readonly string[] =>
  execution.withTransitiveWaiters(unit, (waiter, holder) =>
    waitsFor(waiter, execution.stateOf(waiter).blockedStep, holder, execution),
  )

/** True if another unit may hold a lock that the step wants, so that the step may have to wait. */
export const mayBlock = ({ unit, footprint }: Transition, execution: Execution): boolean =>
  execution.units.some((other) => waitsFor(unit, footprint, other, execution))

/** True if `waiter` wants a lock that `holder` may hold. */
function waitsFor(
  waiter: string,
  wanted: Footprint | undefined,
  holder: string,
  execution: Execution,
): boolean {
  if (!wanted || waiter === holder) return false
  const { performed } = execution.stateOf(holder)
  if (performed.unboundedBecause !== undefined) return true
  return wanted.unboundedBecause === undefined
    ? conflictAny(wanted.locks, performed.locks)
    : performed.locks.length > 0
}

/** True if, after both steps, `from` may wait for `to`, directly or through other waiting units. */
function mayWaitFor(from: Transition, to: Transition, execution: Execution): boolean {
  const wantedBy = (unit: string): Footprint | undefined =>
    unit === from.unit
      ? from.footprint
      : unit === to.unit
        ? to.footprint
        : execution.stateOf(unit).blockedStep
  const seen = new Set([from.unit])
  for (const unit of seen) {
    if (unit === to.unit) return true
    for (const next of execution.units) if (waitsFor(unit, wantedBy(unit), next, execution)) seen.add(next)
  }
  return false
}

/** True if the order of the two steps may matter. Both steps include the waiting steps that they may resume. */
export function areDependent(
  a: Transition,
  b: Transition,
  execution: Execution,
  facts: LearnedFacts,
  rules: readonly DependenceRule[] = DEPENDENCE_RULES,
): boolean {
  const stepsOfB = withResumedSteps(b, execution, facts)
  return withResumedSteps(a, execution, facts).some((one) =>
    stepsOfB.some(
      (other) =>
        isSameActor(one.unit, other.unit) ||
        rules.some(({ holds }) => holds(one, other, execution, facts) || holds(other, one, execution, facts)),
    ),
  )
}

/** A step, and the waiting steps that it may resume, except those that `isSameAfterWait`. */
function withResumedSteps(
  transition: Transition,
  execution: Execution,
  facts: LearnedFacts,
): readonly Transition[] {
  const resumed = withWaiters(transition.unit, execution).flatMap((unit): Transition[] => {
    const footprint = execution.stateOf(unit).blockedStep
    return footprint && !isSameAfterWait(footprint, facts) ? [{ unit, footprint }] : []
  })
  return [transition, ...resumed]
}

/** True if a waiting step has had no effect yet, so that it ends as if it started only after the wait. */
function isSameAfterWait(footprint: Footprint, facts: LearnedFacts): boolean {
  const { unboundedBecause, text = '', locks, reads, sequences, versionTables, readsClock } = footprint
  // An UPDATE never waits for index entries of keys that it does not change.
  const [lock, ...more] = locks.filter(
    ({ isOfExistingRow, strength }) => isOfExistingRow || strength > KEY_SHARE,
  )
  return (
    unboundedBecause === undefined &&
    !readsClock &&
    !facts.waitDependentTexts.has(text) &&
    lock?.resource.keys?.size === 1 &&
    more.length + reads.length + sequences.size === 0 &&
    (lock.isOfExistingRow || ![...versionTables].some((table) => facts.isOrderSensitive(table)))
  )
}
