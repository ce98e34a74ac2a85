import type { Anomaly } from './anomaly.js'
import { actsOn, areOfReadRow, isKept, misses, readsAgain } from './conflicts.js'
import type { History, Read, Write } from './history.js'
import { describeRows, enumerate, stepName } from './words.js'

/**
 * Finds P4 of Berenson et al. (1995): r1[x] … w2[x] … c2 … w1[x] … c1. Here x is a column of a row. 1 is one connection,
 * perhaps with several transactions, since most lost updates read and write in two. A write such as `set n = n + 1` keeps
 * the other's change. Then the decision that depended on the read is wrong.
 */
export function lostUpdate(history: History): Anomaly | undefined {
  for (const read of history.reads)
    for (const other of history.writes) {
      if (!isKept(read) || other.kind === 'insert' || other.kind === 'delete' || !misses(read, other))
        continue
      for (const own of history.writes) {
        const columns = overwritten(history, read, other, own)
        if (columns.length === 0 || readsAgain(history, read, other.committed, own)) continue
        return explain(history, { read, other, own, columns })
      }
    }
  return undefined
}

/** Columns that the unit read, the other changed, and the unit then wrote. */
function overwritten(history: History, read: Read, other: Write, own: Write): readonly string[] {
  if (own.kind !== 'update' && own.kind !== 'put') return []
  if (!actsOn(own, read) || own.access === read.access || own.access.step < read.access.step) return []
  if (own.access.answeredAt < other.committed || !areOfReadRow(history, read, own, other)) return []
  const columns = [...(own.sets?.keys() ?? [])].filter(
    (column) => other.sets?.has(column) && read.columns.has(column),
  )
  // An UPDATE with these columns in its condition has checked the newest version of the row.
  return columns.some((column) => own.whereColumns.has(column)) ? [] : columns
}

interface Found {
  readonly read: Read
  readonly other: Write
  readonly own: Write
  readonly columns: readonly string[]
}

function explain({ nameOf }: History, { read, other, own, columns }: Found): Anomaly {
  const isBlind = columns.some((column) => own.sets?.get(column))
  const [reader, writer] = [read.access.actor, other.access.actor]
  const them = columns.length === 1 ? 'it' : 'them'
  const between = `committed in between (${nameOf(other.committed)})`
  return {
    name: 'lost update',
    explanation:
      `Lost update on ${describeRows(own)}: ${reader} read ${enumerate(columns)} (${stepName(read.access)}) and ` +
      (isBlind
        ? `set ${them} (${stepName(own.access)}), over a change that ${writer} ${between}.`
        : `changed ${them} (${stepName(own.access)}), but ${writer} changed ${them} too and ${between}.`),
  }
}
