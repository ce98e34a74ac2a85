import { ADVISORY, intersects } from '../footprint/footprint.js'
import { primaryColumnsOf } from '../statements/schema-info.js'
import type { Anomaly } from './anomaly.js'
import { actsOn, misses } from './conflicts.js'
import { type Access, type History, type Write, writtenBy } from './history.js'
import { describeRows, stepName } from './words.js'

/**
 * Finds a lock that was released too soon, or that belonged to another actor when it was released. A trace does not show what
 * a lock protects. So only two kinds count: an advisory lock, and a row that both try to INSERT and one of them DELETEs.
 */
export function lockRelease(history: History): Anomaly | undefined {
  return releasedBeforeCommit(history) ?? releasedOfAnother(history)
}

/**
 * Finds an advisory lock that is released before the transaction that wrote under it commits. Another unit takes the lock,
 * reads the old version of what was written, and then writes as well.
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
        if (taken.unit === unit || taken.answeredAt < release.step || !takes(taken, keys)) continue
        const stale = reads.find(
          (read) => read.access.unit === taken.unit && read.access.step > taken.step && misses(read, written),
        )
        if (!stale || !writes.some((write) => actsOn(write, stale))) continue
        return {
          name: 'dirty lock release',
          explanation:
            `Dirty lock release: ${release.actor} gave the advisory lock back (${stepName(release)}) before the change of ` +
            `${describeRows(written)} under it was committed (${nameOf(written.committed)}); ${taken.actor} got the lock ` +
            `(${stepName(taken)}) and read what was there before (${stepName(stale.access)}).`,
        }
      }
    }
  return undefined
}

/** True if the statement waits for one of these locks, and has it when it is done. */
const takes = ({ footprint, result }: Access, keys: ReadonlySet<string>): boolean =>
  !result.error &&
  footprint.lockProbes.length === 0 &&
  footprint.locks.some(
    ({ resource: { table, keys: wanted } }) => table === ADVISORY && wanted && intersects(wanted, keys),
  )

/** Finds a DELETE of a row by its key alone, after another actor has inserted or updated that row. */
function releasedOfAnother(history: History): Anomaly | undefined {
  for (const release of history.writes) {
    if (history.unclearTables.has(release.table)) continue
    if (release.kind !== 'delete' || release.keys?.size !== 1 || writtenBy(release.access) !== 1) continue
    const columns = primaryColumnsOf(release.info) ?? []
    if ([...release.whereColumns].some((column) => !columns.includes(column))) continue
    const { unit, actor, step, answeredAt } = release.access
    const holder = lastWriteBefore(history, release)
    if (!holder?.isExclusive || holder.access.actor === actor) continue
    const tried = history.accesses.find(
      (access) =>
        access.unit === unit &&
        access.step < step &&
        triesFor(access, release) &&
        access.answeredAt <= holder.committed,
    )
    if (!tried || answeredAt < holder.committed) continue
    return {
      name: 'dirty lock release',
      explanation:
        `Dirty lock release: ${stepName(release.access)} deleted ${describeRows(release)}, which ${stepName(tried)} had tried to ` +
        `take, but which was ${holder.access.actor}'s by then (${stepName(holder.access)}).`,
    }
  }
  return undefined
}

/** The last write of the row before it is deleted. */
function lastWriteBefore({ writes }: History, release: Write): Write | undefined {
  const before = writes.filter(
    (write) =>
      write !== release &&
      write.table === release.table &&
      write.committed <= release.access.answeredAt &&
      (!write.keys || intersects(write.keys, release.keys ?? new Set())),
  )
  return before
    .toSorted((a, b) => a.committed - b.committed || a.access.answeredAt - b.access.answeredAt)
    .at(-1)
}

/** True for an INSERT of the same key that leaves an existing row alone. */
function triesFor({ shape }: Access, { table, keys }: Write): boolean {
  const write = shape?.write
  if (!write?.isExclusive || write.table !== table || !write.keys || !keys) return false
  return intersects(write.keys, keys)
}
