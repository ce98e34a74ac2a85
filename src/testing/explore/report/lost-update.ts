import type { History, Read, Write } from './accesses.js'
import type { Anomaly } from './anomaly-name.js'
import { actsOn, areOfReadRow, isKept, looksAgain, misses } from './conflicts.js'
import { enumerate, place, stepName } from './words.js'

/**
 * P4 of Berenson et al. (1995): r1[x] … w2[x] … c2 … w1[x] … c1. Here x is a column of a row, and 1 is what one connection
 * does, also in several transactions: that the read and the write are not in one is the more frequent mistake. If the write
 * is `set n = n + 1`, it keeps what the other wrote, and what is lost is what the read was for.
 */
export function lostUpdate(history: History): Anomaly | undefined {
  for (const read of history.reads)
    for (const other of history.writes) {
      if (!isKept(read) || other.kind === 'insert' || other.kind === 'delete' || !misses(read, other))
        continue
      for (const own of history.writes) {
        const columns = overwritten(history, read, other, own)
        if (columns.length === 0 || looksAgain(history, read, other.committed, own)) continue
        return explain(history, { read, other, own, columns })
      }
    }
  return undefined
}

/** Columns that were read, then changed by the other, and then written by whoever had read them. */
function overwritten(history: History, read: Read, other: Write, own: Write): readonly string[] {
  if (own.kind !== 'update' && own.kind !== 'put') return []
  if (!actsOn(own, read) || own.access === read.access || own.access.step < read.access.step) return []
  if (own.access.done < other.committed || !areOfReadRow(history, read, own, other)) return []
  const columns = [...(own.sets?.keys() ?? [])].filter(
    (column) => other.sets?.has(column) && read.columns.has(column),
  )
  // An UPDATE that asks for them in its own condition has looked at the newest version of the row.
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
      `Lost update on ${place(own)}: ${reader} read ${enumerate(columns)} (${stepName(read.access)}) and ` +
      (isBlind
        ? `set ${them} (${stepName(own.access)}), over a change that ${writer} ${between}.`
        : `changed ${them} (${stepName(own.access)}), but ${writer} changed ${them} too and ${between}.`),
  }
}
