import { intersects } from '../footprint/footprint.js'
import { type History, type Read, type Write, writtenBy } from './history.js'
import { matches } from './row-match.js'

/** True if the write certainly changed the result of the read: a row of the read, in a column that the read names. */
export function touches(write: Write, read: Read): boolean {
  if (write.table !== read.table) return false
  if (write.kind === 'insert') return addsTo(write, read)
  const { sets } = write
  if (sets && !intersects(new Set(sets.keys()), read.columns)) return false
  if (read.keys && write.keys) return intersects(read.keys, write.keys) && hasAllKeys(write)
  if (read.keys) return write.isWhole && read.access.result.rowCount > 0 && !read.isNested
  if (read.isCut) return false
  if (read.where === undefined) return true
  // All columns of the condition are set by the write, so no other column can exclude the row.
  return write.kind === 'update' && [...read.whereColumns].every((column) => sets?.has(column))
}

function addsTo({ rows = [] }: Write, { isCut, where, info, access }: Read): boolean {
  if (isCut && access.result.rowCount > 0) return false
  return where === undefined || rows.some((row) => matches(where, row, info.columns, access.values) === true)
}

/** True if the server counted as many rows as keys, so that no key was missing. */
const hasAllKeys = ({ keys, access }: Write): boolean => keys?.size === writtenBy(access)

/** True for an anti-dependency: another actor's write was committed after the read, and would have changed its result. */
export const misses = (read: Read, write: Write): boolean =>
  read.access.actor !== write.access.actor && read.seesUntil < write.committed && touches(write, read)

/** True if the read saw another actor's write. */
export const follows = (read: Read, write: Write): boolean =>
  read.access.actor !== write.access.actor && read.seesUntil > write.committed && touches(write, read)

/** True if both writes certainly wrote the same row. */
function areOfOneRow({ singleRowTables }: History, a: Write, b: Write): boolean {
  if (a.table !== b.table) return false
  if (a.isWhole || b.isWhole || singleRowTables.has(a.table)) return true
  return (
    a.keys !== undefined &&
    b.keys !== undefined &&
    intersects(a.keys, b.keys) &&
    hasAllKeys(a) &&
    hasAllKeys(b)
  )
}

/** True if both writes certainly wrote the same row, and the read found it. */
export function areOfReadRow(history: History, read: Read, a: Write, b: Write): boolean {
  if (!areOfOneRow(history, a, b)) return false
  const [first, ...others] = [read.keys, a.keys, b.keys].filter((keys) => keys !== undefined)
  return !first || [...first].some((key) => others.every((keys) => keys.has(key)))
}

/** True if both writes certainly wrote different rows. */
export function areOfOtherRows(a: Write, b: Write): boolean {
  if (a.table !== b.table) return true
  if (a.kind === 'insert' || b.kind === 'insert') return true
  return a.keys !== undefined && b.keys !== undefined && !intersects(a.keys, b.keys)
}

/** True if the transaction of the read was committed. */
export const isKept = ({ access }: Read): boolean => access.transaction.committed !== undefined

/** True if the write belongs to the read: the same unit wrote after it, or in the same transaction. */
export function actsOn(write: Write, read: Read): boolean {
  const [a, b] = [write.access, read.access]
  return a.unit === b.unit && (a.step >= b.step || a.transaction === b.transaction)
}

/** True if the unit has read the table again between a commit and its own write, so that it acts on the newer result. */
export function readsAgain({ accesses }: History, read: Read, from: number, write: Write): boolean {
  const until = Math.max(write.access.step, read.access.step)
  return accesses.some(({ unit, step, answeredAt, footprint, result }) => {
    if (unit !== read.access.unit || step === write.access.step || answeredAt < from || step > until)
      return false
    const isRead = footprint.reads.some(({ table }) => table === read.table)
    return step > read.access.step && (isRead || (footprint.tables.has(read.table) && result.rowCount > 0))
  })
}
