import { ADVISORY, shares } from '../reduce/footprint.js'
import { type Access, type History, type Write, writtenBy } from './accesses.js'
import type { Anomaly } from './anomaly-name.js'
import { actsOn, misses } from './conflicts.js'
import { place, stepName } from './words.js'

/**
 * A lock that was given back too soon, or that was somebody else's by then. What a lock is for is not in a trace; so only
 * two things count: an advisory lock, and a row that both have tried to INSERT where only one can, and that one of them DELETEs.
 */
export function lockRelease(history: History): Anomaly | undefined {
  return releasedBeforeCommit(history) ?? releasedOfAnother(history)
}

/**
 * An advisory lock is given back while the transaction that wrote under it is open. Another takes it, reads what is not
 * committed yet as it was before, and then writes as well.
 */
function releasedBeforeCommit(history: History): Anomaly | undefined {
  const { accesses, reads, writes, nameOf } = history
  for (const release of accesses)
    for (const written of writes) {
      const { transaction, unit, step } = written.access
      if (!release.shape?.unlocks.length || release.transaction !== transaction || step > release.step)
        continue
      const keys = new Set(release.shape.unlocks)
      const isHeld = accesses.some((one) => one.unit === unit && one.step < step && takes(one, keys))
      if (!isHeld || release.result.rows[0]?.[0] !== 't') continue
      for (const taken of accesses) {
        if (taken.unit === unit || taken.done < release.step || !takes(taken, keys)) continue
        const stale = reads.find(
          (read) => read.access.unit === taken.unit && read.access.step > taken.step && misses(read, written),
        )
        if (!stale || !writes.some((write) => actsOn(write, stale))) continue
        return {
          name: 'dirty lock release',
          explanation:
            `Dirty lock release: ${release.actor} gave the advisory lock back (${stepName(release)}) before the change of ` +
            `${place(written)} under it was committed (${nameOf(written.committed)}); ${taken.actor} got the lock ` +
            `(${stepName(taken)}) and read what was there before (${stepName(stale.access)}).`,
        }
      }
    }
  return undefined
}

/** It waits for the lock, and has it when it is answered. */
const takes = ({ footprint, result }: Access, keys: ReadonlySet<string>): boolean =>
  !result.error &&
  footprint.tries.length === 0 &&
  footprint.locks.some(
    ({ place: { table, keys: wanted } }) => table === ADVISORY && wanted && shares(wanted, keys),
  )

/** A row that is deleted by its key alone, when it is no longer the one that the same actor had put there or looked at. */
function releasedOfAnother(history: History): Anomaly | undefined {
  for (const release of history.writes) {
    if (history.vague.has(release.table)) continue
    if (release.kind !== 'delete' || release.keys?.size !== 1 || writtenBy(release.access) !== 1) continue
    const columns = release.facts.uniques.find(({ isPrimary }) => isPrimary)?.columns ?? []
    if ([...release.whereColumns].some((column) => !columns.includes(column))) continue
    const { unit, actor, step, done } = release.access
    const holder = lastBefore(history, release)
    if (!holder?.isExclusive || holder.access.actor === actor) continue
    const tried = history.accesses.find(
      (access) =>
        access.unit === unit &&
        access.step < step &&
        triesFor(access, release) &&
        access.done <= holder.committed,
    )
    if (!tried || done < holder.committed) continue
    return {
      name: 'dirty lock release',
      explanation:
        `Dirty lock release: ${stepName(release.access)} deleted ${place(release)}, which ${stepName(tried)} had tried to ` +
        `take, but which was ${holder.access.actor}'s by then (${stepName(holder.access)}).`,
    }
  }
  return undefined
}

/** Who wrote the row that is deleted. */
function lastBefore({ writes }: History, release: Write): Write | undefined {
  const before = writes.filter(
    (write) =>
      write !== release &&
      write.table === release.table &&
      write.committed <= release.access.done &&
      (!write.keys || shares(write.keys, release.keys ?? new Set())),
  )
  return before.toSorted((a, b) => a.committed - b.committed || a.access.done - b.access.done).at(-1)
}

/** An INSERT of the same key that may find it taken. */
function triesFor({ shape }: Access, { table, keys }: Write): boolean {
  const write = shape?.write
  if (!write?.isExclusive || write.table !== table || !write.keys || !keys) return false
  return shares(write.keys, keys)
}
