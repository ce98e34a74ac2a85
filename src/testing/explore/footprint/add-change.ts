import { childOf, listOf, type Node } from '../statements/parse-tree.js'
import type { TableInfo, UniqueIndex } from '../statements/schema-info.js'
import { addRowLock } from './add-select.js'
import { KEY_SHARE, NO_KEY_UPDATE, type Resource, ROWS, UPDATE } from './footprint.js'
import { countSources, type FootprintBuilder } from './footprint-builder.js'
import { readsClock } from './times.js'

/** Adds what an UPDATE reads, locks and writes. */
export function addUpdate(builder: FootprintBuilder, update: Node, ctes: ReadonlySet<string>): void {
  const target = builder.mentionTarget(update)
  const isAlone = addOtherTables(builder, update.fromClause, update.whereClause, ctes)
  const resource = builder.rowsOf(target, update.whereClause, isAlone)
  const strength = addRowChange(builder, resource, target.info, update.targetList)
  // PostgreSQL takes the weaker lock if a key is set to the value that it already has.
  const certainStrength = Math.min(strength, NO_KEY_UPDATE)
  const lock = { resource, strength, isOfExistingRow: true }
  addRowLock(builder, lock, target, update.whereClause, { isAlone, isOrdered: false }, certainStrength)
}

/** Adds what a DELETE reads, locks and writes. */
export function addDelete(builder: FootprintBuilder, remove: Node, ctes: ReadonlySet<string>): void {
  const target = builder.mentionTarget(remove)
  const { name, info } = target
  if (info.referenced)
    builder.addUnbounded(`${info.referenced.by} refers to ${name}, of which rows are deleted`)
  const isAlone = addOtherTables(builder, remove.usingClause, remove.whereClause, ctes)
  const resource = builder.rowsOf(target, remove.whereClause, isAlone)
  for (const unique of info.uniques.filter(({ isPrimary }) => !isPrimary))
    builder.add({
      locks: [{ resource: indexResource(name, unique), strength: UPDATE, isOfExistingRow: false }],
    })
  builder.add({ changes: [resource] })
  const lock = { resource, strength: UPDATE, isOfExistingRow: true }
  addRowLock(builder, lock, target, remove.whereClause, { isAlone, isOrdered: false })
}

/** Adds the tables of UPDATE … FROM and DELETE … USING. @returns true if there are none */
function addOtherTables(
  builder: FootprintBuilder,
  from: unknown,
  where: unknown,
  ctes: ReadonlySet<string>,
): boolean {
  if (listOf(from).length === 0) return true
  const resources = builder.mentionsIn(from, ctes).map((one) => builder.rowsOf(one, where, false))
  builder.add({ reads: resources })
  // If several rows match, the statement uses the first that the scan finds.
  const findsOne = resources.length === countSources(from) && resources.every(({ keys }) => keys?.size === 1)
  if (!findsOne) builder.combinesRows = true
  return false
}

/** Adds how the SET list of an UPDATE changes a row and its keys. @returns the strength of the row's lock */
export function addRowChange(
  builder: FootprintBuilder,
  resource: Resource,
  info: TableInfo,
  targetList: unknown,
): number {
  const { table } = resource
  const targets = listOf(targetList).map((target) => childOf(target, 'ResTarget') ?? {})
  const names = targets.map(({ name }) => `${name}`)
  const isSet = (column: string): boolean => names.includes(column)
  if (targets.some(({ val }) => childOf(val, 'SetToDefault')))
    builder.addUnbounded('it sets a column to its default')
  const timestamped = targets.filter(({ val }) => readsClock(val)).map(({ name }) => name)
  if (info.columns.some(({ name, isTemporal }) => timestamped.includes(name) && !isTemporal))
    builder.add({ timeReadTables: new Set([table]) })
  const touches = ({ columns }: UniqueIndex): boolean => !columns || columns.some(isSet)
  for (const unique of info.uniques) {
    // An INSERT of the key of a row that is being changed waits, even if the key stays the same.
    const strength = touches(unique) ? UPDATE : KEY_SHARE
    if (touches(unique) || !unique.isPrimary)
      builder.add({ locks: [{ resource: indexResource(table, unique), strength, isOfExistingRow: false }] })
    if (touches(unique) && unique.isPrimary) builder.add({ inserts: [indexResource(table, unique)] })
  }
  if (info.referenced?.columns.some(isSet))
    builder.addUnbounded(`${info.referenced.by} refers to ${table}, whose key is changed`)
  const isGenerated = (name: string): boolean =>
    info.columns.some((column) => column.name === name && column.isGenerated)
  const foreignKeys = info.foreignKeys.filter(({ columns }) =>
    columns.some((one) => isSet(one) || isGenerated(one)),
  )
  addForeignKeys(builder, { ...info, foreignKeys }, () => undefined)
  const touched = info.uniques.filter(touches)
  const movesRow = touched.some(({ isPrimary }) => isPrimary)
  builder.add({
    changes: [movesRow ? { table, index: ROWS } : resource],
    versionTables: new Set([table]),
  })
  return touched.length > 0 ? UPDATE : NO_KEY_UPDATE
}

/** Adds the weak locks of the rows to which the foreign keys of written rows refer. */
export function addForeignKeys(
  builder: FootprintBuilder,
  { foreignKeys }: TableInfo,
  keysOf: (columns: readonly string[]) => ReadonlySet<string> | undefined,
): void {
  for (const { columns, table, schema, isToPrimary } of foreignKeys) {
    const keys = isToPrimary ? keysOf(columns) : undefined
    if (keys?.size === 0) continue
    const resource = { table, schema, index: ROWS, keys }
    builder.add({
      locks: [{ resource, strength: KEY_SHARE, isOfExistingRow: true }],
      tables: new Set([table]),
    })
  }
}

export const indexResource = (
  table: string,
  { name, isPrimary }: UniqueIndex,
  keys?: ReadonlySet<string> | undefined,
): Resource => ({ table, index: isPrimary ? ROWS : name, keys })
