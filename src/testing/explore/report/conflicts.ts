import { shares } from '../reduce/footprint.js'
import { type History, type Read, type Write, writtenBy } from './accesses.js'
import { matches } from './row-match.js'

/** The write certainly made another answer of what the read asked for: it met one of its rows, in a column that it names. */
export function touches(write: Write, read: Read): boolean {
  if (write.table !== read.table) return false
  if (write.kind === 'insert') return addsTo(write, read)
  const { sets } = write
  if (sets && !shares(new Set(sets.keys()), read.columns)) return false
  if (read.keys && write.keys) return shares(read.keys, write.keys) && hasAllKeys(write)
  if (read.keys) return write.isWhole && read.access.result.rowCount > 0 && !read.isWithin
  if (read.isCut) return false
  if (read.where === undefined) return true
  // A condition on what the write sets, and on nothing else that the row might not fulfil.
  return write.kind === 'update' && [...read.whereColumns].every((column) => sets?.has(column))
}

function addsTo({ rows = [] }: Write, { isCut, where, facts, access }: Read): boolean {
  if (isCut && access.result.rowCount > 0) return false
  return where === undefined || rows.some((row) => matches(where, row, facts.columns, access.values) === true)
}

/** As many rows as keys: none of them was missing. */
const hasAllKeys = ({ keys, access }: Write): boolean => keys?.size === writtenBy(access)

/** An anti-dependency: somebody else's write was committed after the read, which would have shown it. */
export const misses = (read: Read, write: Write): boolean =>
  read.access.actor !== write.access.actor && read.sees < write.committed && touches(write, read)

/** It saw what somebody else's write had left. */
export const follows = (read: Read, write: Write): boolean =>
  read.access.actor !== write.access.actor && read.sees > write.committed && touches(write, read)

/** Both certainly wrote one row. */
function areOfOneRow({ singles }: History, a: Write, b: Write): boolean {
  if (a.table !== b.table) return false
  if (a.isWhole || b.isWhole || singles.has(a.table)) return true
  return (
    a.keys !== undefined && b.keys !== undefined && shares(a.keys, b.keys) && hasAllKeys(a) && hasAllKeys(b)
  )
}

/** And that row, or one of those, was read. */
export function areOfReadRow(history: History, read: Read, a: Write, b: Write): boolean {
  if (!areOfOneRow(history, a, b)) return false
  const [first, ...others] = [read.keys, a.keys, b.keys].filter((keys) => keys !== undefined)
  return !first || [...first].some((key) => others.every((keys) => keys.has(key)))
}

/** They certainly did not write one row. */
export function areOfOtherRows(a: Write, b: Write): boolean {
  if (a.table !== b.table) return true
  if (a.kind === 'insert' || b.kind === 'insert') return true
  return a.keys !== undefined && b.keys !== undefined && !shares(a.keys, b.keys)
}

/** Not in a transaction that was rolled back. */
export const isKept = ({ access }: Read): boolean => access.transaction.committed !== undefined

/** The write is what the unit did after the read, or in the same transaction. */
export function actsOn(write: Write, read: Read): boolean {
  const [wrote, looked] = [write.access, read.access]
  return wrote.unit === looked.unit && (wrote.step >= looked.step || wrote.transaction === looked.transaction)
}

/** Between a commit and its own write the unit has looked at the table again: it acts on what it saw then. */
export function looksAgain({ accesses }: History, read: Read, from: number, write: Write): boolean {
  const until = Math.max(write.access.step, read.access.step)
  return accesses.some(({ unit, step, done, footprint, result }) => {
    if (unit !== read.access.unit || step === write.access.step || done < from || step > until) return false
    const isRead = footprint.reads.some(({ table }) => table === read.table)
    return step > read.access.step && (isRead || (footprint.touches.has(read.table) && result.rowCount > 0))
  })
}
