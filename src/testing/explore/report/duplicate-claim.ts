import { columnOf, someNode } from '../statements/parse-tree.js'
import type { UniqueIndex } from '../statements/schema-info.js'
import type { Anomaly } from './anomaly.js'
import { actsOn, areOfReadRow, isKept, misses, readsAgain } from './conflicts.js'
import type { Access, History, Read, Write } from './history.js'
import { matches } from './row-match.js'
import { describeRows, enumerate, stepName } from './words.js'
import type { WriteShape } from './write-shape.js'

/**
 * Finds two actors that ran the same query, each before the other's COMMIT, and then both claimed the row. Either both
 * inserted the row that the query had not found, or both updated a column of the condition in the row that it found. A
 * second INSERT that a unique key refused counts too. Two actors that insert different rows, or set different values, claim
 * nothing.
 */
export function duplicateClaim(history: History): Anomaly | undefined {
  return insertedTwice(history) ?? refusedInsert(history) ?? updatedTwice(history)
}

/** Pairs of reads of two actors with the same text and parameters. */
function pairs({ reads }: History): (readonly [Read, Read])[] {
  return reads.flatMap((a) =>
    reads
      .filter(
        (b) =>
          a.access.actor !== b.access.actor &&
          a.access.signature === b.access.signature &&
          a.table === b.table,
      )
      .map((b) => [a, b] as const),
  )
}

const writesAfter = (history: History, read: Read, kind: Write['kind']): readonly Write[] =>
  history.writes.filter((write) => write.kind === kind && actsOn(write, read) && write.table === read.table)

function insertedTwice(history: History): Anomaly | undefined {
  for (const [read, otherRead] of pairs(history)) {
    if (!hasFoundNothing(read) || !hasFoundNothing(otherRead)) continue
    for (const other of writesAfter(history, otherRead, 'insert'))
      for (const own of writesAfter(history, read, 'insert')) {
        if (!misses(read, other) || !misses(otherRead, own) || own.access.step < other.access.step) continue
        if ((!areAlike(own, other) && !isExistenceCheck(read)) || isIgnored(history, read)) continue
        if (readsAgain(history, read, other.committed, own)) continue
        return explain(
          read,
          otherRead,
          'row',
          `inserted one (${stepName(other.access)} and ${stepName(own.access)})`,
        )
      }
  }
  return undefined
}

/** True if both insert the same values, or the same values of a unique key. Defaults do not count. */
function areAlike(a: Write, b: Write): boolean {
  const [row, ...more] = a.rows ?? []
  const [other, ...others] = b.rows ?? []
  if (!row || !other || more.length + others.length > 0) return false
  const isSame = (column: string): boolean => row.get(column) === other.get(column)
  const isKey = ({ columns }: UniqueIndex): boolean =>
    columns?.every((column) => typeof row.get(column) === 'string' && isSame(column)) === true
  return a.info.uniques.some(isKey) || [...row.keys(), ...other.keys()].every(isSame)
}

/** True if the result shows only whether there is a row: EXISTS, or no columns but those of the condition. */
const isExistenceCheck = ({ isNested, isPlain, columns, whereColumns }: Read): boolean =>
  isNested || (isPlain && [...columns].every((column) => whereColumns.has(column)))

/** True if some actor ran the same query, found a row, and inserted one all the same. */
const isIgnored = (history: History, { access, table }: Read): boolean =>
  history.reads.some(
    (read) =>
      read.access.signature === access.signature &&
      read.table === table &&
      !hasFoundNothing(read) &&
      writesAfter(history, read, 'insert').length > 0,
  )

function refusedInsert(history: History): Anomaly | undefined {
  for (const [read, otherRead] of pairs(history)) {
    if (!hasFoundNothing(read) || !hasFoundNothing(otherRead)) continue
    const refused = history.accesses.find(
      (access) =>
        access.unit === read.access.unit && access.step >= read.access.step && isRefused(access, read),
    )
    const other = writesAfter(history, otherRead, 'insert').find(
      (write) => misses(read, write) && refused && write.committed <= refused.answeredAt,
    )
    if (!refused || !other) continue
    const both = `inserted one (${stepName(other.access)} and ${stepName(refused)}); a unique key refused the second`
    return explain(read, otherRead, 'row', both)
  }
  return undefined
}

/** True for an INSERT of what the read had not found that a unique key refused. */
function isRefused({ result, shape }: Access, read: Read): boolean {
  const write: WriteShape | undefined = shape?.write
  if (result.error?.code !== '23505' || write?.kind !== 'insert' || write.table !== read.table) return false
  return (write.rows ?? []).some(
    (row) => matches(read.where, row, read.info.columns, read.access.values) === true,
  )
}

/** True for no row, and for one row with the 0 of a count or the `false` of EXISTS. */
function hasFoundNothing({ access, isNegated, isNested, isPlain }: Read): boolean {
  const { rowCount, rows } = access.result
  const only = rowCount === 1 && rows[0]?.length === 1 ? rows[0][0] : undefined
  if (isNested) return isNegated || (only === 'f' && !access.shape?.write)
  return rowCount === 0 || (only === '0' && !isPlain)
}

function updatedTwice(history: History): Anomaly | undefined {
  for (const [read, otherRead] of pairs(history))
    for (const other of writesAfter(history, otherRead, 'update')) {
      if (!misses(read, other) || !isKept(read) || !isKept(otherRead)) continue
      for (const own of writesAfter(history, read, 'update')) {
        if (
          !misses(otherRead, own) ||
          own.access.answeredAt < other.committed ||
          !areOfReadRow(history, read, own, other)
        )
          continue
        const columns = [...read.whereColumns].filter(
          (one) => own.sets?.get(one) && other.sets?.get(one) && claims(read, one, own, other),
        )
        const isGuarded = [...own.whereColumns].some((column) => own.sets?.has(column))
        if (columns.length === 0 || isGuarded || readsAgain(history, read, other.committed, own)) continue
        const both = `set ${enumerate(columns)} (${stepName(other.access)} and ${stepName(own.access)})`
        return explain({ ...read, keys: own.keys }, otherRead, 'change', both)
      }
    }
  return undefined
}

/** True if both set the column to the same value, or the condition was that it is NULL. */
function claims({ where }: Read, column: string, own: Write, other: Write): boolean {
  const [mine, theirs] = [own.constants?.get(column), other.constants?.get(column)]
  return mine === undefined || theirs === undefined || mine === theirs || asksForNull(where, column)
}

const asksForNull = (where: unknown, column: string): boolean =>
  someNode(
    where,
    (kind, { nulltesttype, arg }) =>
      kind === 'NullTest' && nulltesttype === 'IS_NULL' && columnOf(arg) === column,
  )

const explain = (read: Read, otherRead: Read, unseen: 'row' | 'change', both: string): Anomaly => ({
  name: 'duplicate claim',
  explanation:
    `Duplicate claim on ${describeRows(read)}: neither ${stepName(otherRead.access)} nor ${stepName(read.access)} could see ` +
    `the other's ${unseen}, and both ${both}.`,
})
