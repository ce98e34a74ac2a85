import { childOf, listOf, type Node } from '../statements/parse-tree.js'
import { primaryColumnsOf, type TableInfo } from '../statements/schema-info.js'
import { addForeignKeys, addRowChange, indexResource } from './add-change.js'
import { type Resource, ROWS, UPDATE } from './footprint.js'
import type { FootprintBuilder } from './footprint-builder.js'
import { InsertedRows } from './inserted-rows.js'
import { defaultsToTime, readsClock } from './times.js'

/** Adds what an INSERT locks and writes. The visit of its query adds the reads. */
export function addInsert(builder: FootprintBuilder, insert: Node): void {
  const { name, info } = builder.mentionTarget(insert)
  const inserted = new InsertedRows(insert, info.columns, builder.values)
  builder.add({ sequences: inserted.drawnSequences, versionTables: new Set([name]) })
  const isTimestamped = info.columns.some((column) => defaultsToTime(column) && inserted.mayLeaveOut(column))
  if (isTimestamped) builder.add({ timestampedTables: new Set([name]) })
  // A time in a column that is not temporal may be read by any reader of the table.
  if (inserted.someValue((value, column) => readsClock(value) && !column?.isTemporal))
    builder.add({ timeReadTables: new Set([name]) })
  for (const unique of info.uniques) {
    const keys = inserted.keysOf(unique.columns)
    if (keys?.size === 0) continue
    builder.add({
      locks: [{ resource: indexResource(name, unique, keys), strength: UPDATE, isOfExistingRow: false }],
    })
  }
  const keys = inserted.keysOf(primaryColumnsOf(info) ?? null)
  const resource = { table: name, index: ROWS, keys: keys?.size === 0 ? undefined : keys }
  builder.add({ inserts: [resource] })
  addForeignKeys(builder, info, (columns) => inserted.keysOf(columns))
  builder.copiesRows ||= !inserted.rows && builder.depth > 1
  const conflict = childOf(insert, 'onConflictClause')
  // If several rows have one key, PostgreSQL inserts the first that the query returns.
  if (conflict && !inserted.rows) builder.combinesRows = true
  if (conflict?.action === 'ONCONFLICT_UPDATE') addConflictUpdate(builder, conflict, resource, info)
}

function addConflictUpdate(
  builder: FootprintBuilder,
  clause: Node,
  inserted: Resource,
  info: TableInfo,
): void {
  const inferred = listOf(childOf(clause, 'infer')?.indexElems).map((one) => childOf(one, 'IndexElem')?.name)
  const primary = primaryColumnsOf(info)
  const isByPrimaryKey =
    primary?.length === inferred.length && primary.every((column) => inferred.includes(column))
  // The row that conflicts on another unique key may be any row.
  const resource = isByPrimaryKey ? inserted : { table: inserted.table, index: ROWS }
  addRowChange(builder, resource, info, clause.targetList)
  builder.add({ locks: [{ resource, strength: UPDATE, isOfExistingRow: false }] })
}
