import { childOf, listOf, type Node } from '../statements/parse-tree.js'
import { primaryColumnsOf } from '../statements/schema-info.js'
import { KEY_SHARE, type Lock, NO_KEY_UPDATE, SHARE, UPDATE } from './footprint.js'
import { countSources, type FootprintBuilder, type TableMention } from './footprint-builder.js'
import { conjuncts } from './key-values.js'
import { isSortedByKey, picksByOrder } from './row-order.js'

const STRENGTHS: Readonly<Record<string, number>> = {
  LCS_FORKEYSHARE: KEY_SHARE,
  LCS_FORSHARE: SHARE,
  LCS_FORNOKEYUPDATE: NO_KEY_UPDATE,
  LCS_FORUPDATE: UPDATE,
}

/** How a statement finds the rows of a table. */
interface Scan {
  /** True if the statement reads no other table at this level. */
  readonly isAlone: boolean
  /** True if the statement finds the rows in the order of a key, or at most one row. */
  readonly isOrdered: boolean
}

/** Adds what a SELECT reads and locks. The visit of its subqueries adds their part. */
export function addSelect(builder: FootprintBuilder, select: Node, ctes: ReadonlySet<string>): void {
  const tables = builder.mentionsIn(select.fromClause, ctes)
  const hasOnlyTables = tables.length === countSources(select.fromClause)
  const isAlone = tables.length === 1 && childOf(listOf(select.fromClause)[0], 'RangeVar') !== undefined
  const clauses = listOf(select.lockingClause).map((clause) => childOf(clause, 'LockingClause') ?? {})
  if (clauses.length > 0 && !hasOnlyTables) builder.addUnbounded('it locks what another query finds')
  const isOrdered =
    isAlone &&
    tables.every(
      (one) => findsOneRow(builder, one, select) || (!one.isRenamed && isSortedByKey(select, one.info)),
    )
  for (const one of tables) {
    const own = clauses.filter(({ lockedRels }) => locks(lockedRels, one))
    addRows(builder, one, select.whereClause, { isAlone, isOrdered }, own)
  }
  if (isOrdered) return
  const names = new Set(tables.map(({ name }) => name))
  const isUnion = select.larg !== undefined
  // The rows of a subquery or a UNION may come from any table.
  if (picksByOrder(select) && (isUnion || !hasOnlyTables)) builder.combinesRows = true
  if (picksByOrder(select)) builder.add({ orderSensitiveTables: names })
  else builder.unsortedTables = new Set([...builder.unsortedTables, ...names])
}

function findsOneRow(builder: FootprintBuilder, one: TableMention, { whereClause }: Node): boolean {
  return one.info.uniques.some(({ columns }) => builder.keysOf(one, whereClause, columns, true)?.size === 1)
}

/** FOR UPDATE OF names aliases; without OF it locks all tables. */
function locks(lockedRels: unknown, { alias }: TableMention): boolean {
  const names = listOf(lockedRels).map((rel) => childOf(rel, 'RangeVar')?.relname)
  return names.length === 0 || names.includes(alias)
}

function addRows(
  builder: FootprintBuilder,
  one: TableMention,
  where: unknown,
  scan: Scan,
  clauses: readonly Node[],
): void {
  const resource = builder.rowsOf(one, where, scan.isAlone)
  if (clauses.length === 0) builder.add({ reads: [resource] })
  for (const { strength: name, waitPolicy } of clauses) {
    const strength = STRENGTHS[`${name}`] ?? UPDATE
    addRowLock(builder, { resource, strength, isOfExistingRow: true }, one, where, scan)
    // FOR KEY SHARE does not wait for an UPDATE that leaves the key alone, and reads the row as it was before that.
    if (strength === KEY_SHARE) builder.add({ reads: [resource] })
    if (waitPolicy !== 'LockWaitBlock') builder.add({ lockProbes: [resource] })
  }
}

/**
 * Adds a lock of the rows that match a condition. A statement that finds its row by key alone may wait for the row or run
 * later: the effect is the same, since PostgreSQL checks the row again after the wait. With a further condition the two may
 * differ. A scan and a join see all other rows as of before the wait.
 *
 * @param certainStrength the strength that the lock has at least
 */
export function addRowLock(
  builder: FootprintBuilder,
  lock: Lock,
  one: TableMention,
  where: unknown,
  { isAlone, isOrdered }: Scan,
  certainStrength = lock.strength,
): void {
  const { resource } = lock
  const isOutermost = builder.depth === 1
  builder.add({ locks: [lock] })
  // A scan locks rows in their physical order. The server counts the rows of the outermost statement only.
  if (!isOrdered && resource.keys?.size !== 1)
    builder.add({
      [isOutermost ? 'unorderedResultTables' : 'orderSensitiveTables']: new Set([one.name]),
    })
  if (!resource.keys || !isAlone) return void builder.add({ reads: [resource] })
  const isKeyAlone = conjuncts(where).length === primaryColumnsOf(one.info)?.length
  if (!isKeyAlone) builder.add({ conditionalRows: [resource] })
  if (isOutermost) builder.add({ locksIfCounted: [{ ...lock, strength: certainStrength }] })
}
