import { inside, names } from '../reduce/node.js'
import type { UniqueIndex } from '../statements/table-facts.js'
import { isRecord } from '../statements/tree-names.js'
import type { Access, History, Read, Write } from './accesses.js'
import type { Anomaly } from './anomaly-name.js'
import { actsOn, areOfReadRow, isKept, looksAgain, misses } from './conflicts.js'
import { matches } from './row-match.js'
import type { WriteShape } from './statement-shape.js'
import { enumerate, place, stepName } from './words.js'

/**
 * Two asked for the same in the same words, each before the other's COMMIT, and both took it: both inserted the row
 * that they had not found, or both set, in the row that they had found by it, the column that they had asked for. A unique
 * key may have refused the second INSERT: it is a duplicate claim all the same, with an error at its end. Two who add
 * different rows to what they had looked at, or turn a row into different things, claim nothing.
 */
export function duplicateClaim(history: History): Anomaly | undefined {
  return insertedTwice(history) ?? refusedInsert(history) ?? updatedTwice(history)
}

/** Pairs of reads in the same words. */
function pairs({ reads }: History): (readonly [Read, Read])[] {
  return reads.flatMap((a) =>
    reads
      .filter(
        (b) => a.access.actor !== b.access.actor && a.access.sign === b.access.sign && a.table === b.table,
      )
      .map((b) => [a, b] as const),
  )
}

const later = (history: History, read: Read, kind: Write['kind']): readonly Write[] =>
  history.writes.filter((write) => write.kind === kind && actsOn(write, read) && write.table === read.table)

function insertedTwice(history: History): Anomaly | undefined {
  for (const [read, otherRead] of pairs(history)) {
    if (!hasFoundNothing(read) || !hasFoundNothing(otherRead)) continue
    for (const other of later(history, otherRead, 'insert'))
      for (const own of later(history, read, 'insert')) {
        if (!misses(read, other) || !misses(otherRead, own) || own.access.step < other.access.step) continue
        if ((!areAlike(own, other) && !isYesOrNo(read)) || isNoHindrance(history, read)) continue
        if (looksAgain(history, read, other.committed, own)) continue
        return told(
          read,
          otherRead,
          'row',
          `inserted one (${stepName(other.access)} and ${stepName(own.access)})`,
        )
      }
  }
  return undefined
}

/** They add what is the same but for what the database gives it, or what a unique key would take for the same. */
function areAlike(a: Write, b: Write): boolean {
  const [row, ...more] = a.rows ?? []
  const [other, ...others] = b.rows ?? []
  if (!row || !other || more.length + others.length > 0) return false
  const isSame = (column: string): boolean => row.get(column) === other.get(column)
  const isKey = ({ columns }: UniqueIndex): boolean =>
    columns?.every((column) => typeof row.get(column) === 'string' && isSame(column)) === true
  return a.facts.uniques.some(isKey) || [...row.keys(), ...other.keys()].every(isSame)
}

/** Whether there is one, and not what it is: EXISTS, or nothing named but what is asked for. */
const isYesOrNo = ({ isWithin, isPlain, columns, whereColumns }: Read): boolean =>
  isWithin || (isPlain && [...columns].every((column) => whereColumns.has(column)))

/** Somebody asked the same, found something, and went on all the same. */
const isNoHindrance = (history: History, { access, table }: Read): boolean =>
  history.reads.some(
    (read) =>
      read.access.sign === access.sign &&
      read.table === table &&
      !hasFoundNothing(read) &&
      later(history, read, 'insert').length > 0,
  )

function refusedInsert(history: History): Anomaly | undefined {
  for (const [read, otherRead] of pairs(history)) {
    if (!hasFoundNothing(read) || !hasFoundNothing(otherRead)) continue
    const refused = history.accesses.find(
      (access) =>
        access.unit === read.access.unit && access.step >= read.access.step && isRefused(access, read),
    )
    const other = later(history, otherRead, 'insert').find(
      (write) => misses(read, write) && refused && write.committed <= refused.done,
    )
    if (!refused || !other) continue
    const both = `inserted one (${stepName(other.access)} and ${stepName(refused)}); a unique key refused the second`
    return told(read, otherRead, 'row', both)
  }
  return undefined
}

/** An INSERT of what the read had not found, which met a unique key. */
function isRefused({ result, shape }: Access, read: Read): boolean {
  const write: WriteShape | undefined = shape?.write
  if (result.error?.code !== '23505' || write?.kind !== 'insert' || write.table !== read.table) return false
  return (write.rows ?? []).some(
    (row) => matches(read.where, row, read.facts.columns, read.access.values) === true,
  )
}

/** No row; or one, with the 0 of a count or the `false` of EXISTS in it. */
function hasFoundNothing({ access, isDenied, isWithin, isPlain }: Read): boolean {
  const { rowCount, rows } = access.result
  const only = rowCount === 1 && rows[0]?.length === 1 ? rows[0][0] : undefined
  if (isWithin) return isDenied || (only === 'f' && !access.shape?.write)
  return rowCount === 0 || (only === '0' && !isPlain)
}

function updatedTwice(history: History): Anomaly | undefined {
  for (const [read, otherRead] of pairs(history))
    for (const other of later(history, otherRead, 'update')) {
      if (!misses(read, other) || !isKept(read) || !isKept(otherRead)) continue
      for (const own of later(history, read, 'update')) {
        if (
          !misses(otherRead, own) ||
          own.access.done < other.committed ||
          !areOfReadRow(history, read, own, other)
        )
          continue
        const columns = [...read.whereColumns].filter(
          (one) => own.sets?.get(one) && other.sets?.get(one) && takesIt(read, one, own, other),
        )
        const isGuarded = [...own.whereColumns].some((column) => own.sets?.has(column))
        if (columns.length === 0 || isGuarded || looksAgain(history, read, other.committed, own)) continue
        const both = `set ${enumerate(columns)} (${stepName(other.access)} and ${stepName(own.access)})`
        return told({ ...read, keys: own.keys }, otherRead, 'change', both)
      }
    }
  return undefined
}

/** Both make the same of it, or it was nobody's before. */
function takesIt({ where }: Read, column: string, own: Write, other: Write): boolean {
  const [mine, theirs] = [own.constants?.get(column), other.constants?.get(column)]
  return mine === undefined || theirs === undefined || mine === theirs || asksForNull(where, column)
}

function asksForNull(node: unknown, column: string): boolean {
  const test = inside(node, 'NullTest')
  if (test?.nulltesttype === 'IS_NULL' && names(inside(test.arg, 'ColumnRef')?.fields).at(-1) === column)
    return true
  return isRecord(node) || Array.isArray(node)
    ? Object.values(node).some((value) => asksForNull(value, column))
    : false
}

const told = (read: Read, otherRead: Read, unseen: 'row' | 'change', both: string): Anomaly => ({
  name: 'duplicate claim',
  explanation:
    `Duplicate claim on ${place(read)}: neither ${stepName(otherRead.access)} nor ${stepName(read.access)} could see ` +
    `the other's ${unseen}, and both ${both}.`,
})
