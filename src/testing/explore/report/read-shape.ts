import type { StepResult } from '../../gate/result.js'
import type { Values } from '../footprint/key-values.js'
import { childOf, columnOf, isRecord, listOf, type Node, someNode } from '../statements/parse-tree.js'
import { primaryColumnsOf, type SchemaInfo, type TableInfo } from '../statements/schema-info.js'
import { columnsIn, keysOf, mentionOf, primaryKeyOfRow } from './shape-parts.js'

/** A SELECT of one table, alone or inside another statement. */
export interface ReadShape {
  readonly table: string
  readonly info: TableInfo
  /** The rows by primary key, as in footprints. */
  readonly keys?: ReadonlySet<string> | undefined
  readonly where: unknown
  readonly whereColumns: ReadonlySet<string>
  /** All columns that the SELECT names, in its condition too. */
  readonly columns: ReadonlySet<string>
  /** True for LIMIT or the like: the SELECT may have skipped rows that meet its condition. */
  readonly isCut: boolean
  readonly locks: boolean
  /** True without an aggregate: the result has one row for each row that was read. */
  readonly isPlain: boolean
  /** True inside NOT EXISTS. */
  readonly isNegated: boolean
  /** True inside another statement, whose result does not show the rows of this SELECT. */
  readonly isNested: boolean
  /** The positions of the primary key's columns in its result. */
  readonly keyAt?: readonly number[] | undefined
}

interface FoundSelect {
  readonly select: Node
  readonly isNegated: boolean
  readonly isNested: boolean
}

/** The SELECTs of a statement, at any depth. */
export const readShapesOf = (tree: unknown, values: Values, schemaInfo: SchemaInfo): readonly ReadShape[] =>
  selectsIn(tree).flatMap((found) => readShapeOf(found, values, schemaInfo) ?? [])

function selectsIn(node: unknown, isNegated = false, isNested = false): FoundSelect[] {
  if (Array.isArray(node)) return node.flatMap((item) => selectsIn(item, isNegated, isNested))
  if (!isRecord(node)) return []
  const bool = childOf(node, 'BoolExpr')
  const negated = bool?.boolop === 'NOT_EXPR' ? childOf(listOf(bool.args)[0], 'SubLink') : undefined
  if (negated?.subLinkType === 'EXISTS_SUBLINK') return selectsIn(negated.subselect, true, true)
  const select = childOf(node, 'SelectStmt')
  const nested = Object.values(select ?? node).flatMap((value) => selectsIn(value, false, true))
  return select ? [{ select, isNegated, isNested }, ...nested] : nested
}

function readShapeOf(
  { select, isNegated, isNested }: FoundSelect,
  values: Values,
  schemaInfo: SchemaInfo,
): ReadShape | undefined {
  const [from, ...others] = listOf(select.fromClause)
  const range = childOf(from, 'RangeVar')
  if (!range || others.length > 0 || select.withClause !== undefined || select.op !== 'SETOP_NONE')
    return undefined
  const clauses = [
    select.targetList,
    select.whereClause,
    select.groupClause,
    select.havingClause,
    select.sortClause,
  ]
  if (someNode(clauses, (kind) => kind === 'SubLink')) return undefined
  const { table, alias, info } = mentionOf(range, schemaInfo)
  const targets = listOf(select.targetList).map((target) => columnOf(childOf(target, 'ResTarget')?.val))
  const keyAt = primaryColumnsOf(info)?.map((column) => targets.indexOf(column))
  const skipsLocked = JSON.stringify(select.lockingClause ?? null).includes('LockWaitSkip')
  return {
    table,
    info,
    // With SKIP LOCKED, only the result shows which rows were read.
    keys: skipsLocked ? undefined : keysOf(select.whereClause, info, values),
    where: select.whereClause,
    whereColumns: columnsIn(select.whereClause, info, [table, alias]),
    columns: columnsIn(clauses, info, [table, alias]),
    isCut:
      skipsLocked ||
      select.limitCount !== undefined ||
      select.limitOffset !== undefined ||
      select.distinctClause !== undefined,
    locks: listOf(select.lockingClause).length > 0,
    isPlain: select.groupClause === undefined && !someNode(clauses, (kind) => kind === 'FuncCall'),
    isNegated,
    isNested,
    ...(keyAt && keyAt.length > 0 && !keyAt.includes(-1) && !isNested ? { keyAt } : {}),
  }
}

/** The primary keys of a result's rows; undefined if the result does not have the keys of all rows. */
export function keysInResult(
  { keyAt, info }: ReadShape,
  { rows, rowCount }: StepResult,
): ReadonlySet<string> | undefined {
  if (!keyAt || rows.length < rowCount) return undefined
  const primary = primaryColumnsOf(info) ?? []
  const keys = rows.map((row) =>
    primaryKeyOfRow(new Map(primary.map((name, i) => [name, row[keyAt[i] ?? -1] ?? null])), info),
  )
  return keys.includes(undefined) ? undefined : new Set(keys as string[])
}
