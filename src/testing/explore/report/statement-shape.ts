import type { StepResult } from '../../gate/result.js'
import { constantOf, joinKey, keyOf, keysIn, type Values } from '../reduce/key-values.js'
import { inside, list, type Node, names, tableName } from '../reduce/node.js'
import type { Lore } from '../reduce/statement-reader.js'
import type { Statement } from '../statements/parse-statements.js'
import type { TableFacts } from '../statements/table-facts.js'
import { isRecord } from '../statements/tree-names.js'
import type { GivenRow } from './row-match.js'

/**
 * What a statement certainly does. Footprints say what it may do at most, which is right for a search and too much for a
 * name: here, whatever cannot be told is left out.
 */
export interface StatementShape {
  readonly reads: readonly ReadShape[]
  readonly write?: WriteShape | undefined
  /** Advisory locks that it gives back, written as in footprints. */
  readonly unlocks: readonly string[]
}

/** A SELECT of one table, alone or within another statement. */
export interface ReadShape {
  readonly table: string
  readonly facts: TableFacts
  /** Rows by primary key, as in footprints. */
  readonly keys?: ReadonlySet<string> | undefined
  readonly where: unknown
  readonly whereColumns: ReadonlySet<string>
  /** Whatever it names, in its condition too. */
  readonly columns: ReadonlySet<string>
  /** LIMIT and the like: it need not have come to every row that its condition holds for. */
  readonly isCut: boolean
  readonly locks: boolean
  /** Its answer has a row for each that it came to: no aggregate. */
  readonly isPlain: boolean
  /** Stands in NOT EXISTS. */
  readonly isDenied: boolean
  /** Within another statement, whose answer says nothing of it. */
  readonly isWithin: boolean
  /** Where the columns of the primary key stand in its answer. */
  readonly keyAt?: readonly number[] | undefined
}

export interface WriteShape {
  /** `put`: INSERT … ON CONFLICT DO UPDATE, which does the one or the other. */
  readonly kind: 'insert' | 'put' | 'update' | 'delete'
  readonly table: string
  readonly facts: TableFacts
  readonly keys?: ReadonlySet<string> | undefined
  /** All rows of the table. */
  readonly isWhole: boolean
  readonly whereColumns: ReadonlySet<string>
  /** What it sets, and whether to something that does not come from the row; undefined: the row as a whole. */
  readonly sets?: ReadonlyMap<string, boolean> | undefined
  /** Of what it sets: the values that stand there. */
  readonly constants?: GivenRow | undefined
  readonly rows?: readonly GivenRow[] | undefined
  /** An INSERT that does not take a key which is taken, or does so on a condition. */
  readonly isExclusive: boolean
}

const NOTHING: ReadonlySet<string> = new Set()

/** Undefined: not understood. */
export function shapeOf(statement: Statement, values: Values, lore: Lore): StatementShape | undefined {
  const [kind = '', node] = isRecord(statement.tree) ? (Object.entries(statement.tree)[0] ?? []) : []
  if (!isRecord(node) || node.withClause !== undefined || node.op === 'SETOP_UNION') return undefined
  const reads = selectsIn(statement.tree).flatMap((found) => readShape(found, values, lore) ?? [])
  const write = writeShape(kind, node, values, lore)
  if (write === undefined && kind !== 'SelectStmt') return undefined
  return { reads, write, unlocks: unlocksIn(statement.tree, values) }
}

interface FoundSelect {
  readonly select: Node
  readonly isDenied: boolean
  readonly isWithin: boolean
}

/** A SELECT and those within it. */
function selectsIn(node: unknown, isDenied = false, isWithin = false): FoundSelect[] {
  if (Array.isArray(node)) return node.flatMap((item) => selectsIn(item, isDenied, isWithin))
  if (!isRecord(node)) return []
  const bool = inside(node, 'BoolExpr')
  const not = bool?.boolop === 'NOT_EXPR' ? inside(list(bool.args)[0], 'SubLink') : undefined
  if (not?.subLinkType === 'EXISTS_SUBLINK') return selectsIn(not.subselect, true, true)
  const select = inside(node, 'SelectStmt')
  if (!select) return Object.values(node).flatMap((value) => selectsIn(value, false, true))
  return [
    { select, isDenied, isWithin },
    ...Object.values(select).flatMap((value) => selectsIn(value, false, true)),
  ]
}

function readShape(
  { select, isDenied, isWithin }: FoundSelect,
  values: Values,
  lore: Lore,
): ReadShape | undefined {
  const [from, ...others] = list(select.fromClause)
  const range = inside(from, 'RangeVar')
  if (!range || others.length > 0 || select.withClause !== undefined || select.op !== 'SETOP_NONE')
    return undefined
  const own = [
    select.targetList,
    select.whereClause,
    select.groupClause,
    select.havingClause,
    select.sortClause,
  ]
  if (JSON.stringify(own).includes('"SubLink"')) return undefined
  const { table, alias, facts } = mention(range, lore)
  const targets = list(select.targetList).map((target) => plainColumn(inside(target, 'ResTarget')?.val))
  const keyAt = primaryOf(facts)?.map((column) => targets.indexOf(column))
  const skips = JSON.stringify(select.lockingClause ?? null).includes('LockWaitSkip')
  return {
    table,
    facts,
    // SKIP LOCKED: which rows it came to is in its answer alone.
    keys: skips ? undefined : keysOf(select.whereClause, facts, values),
    where: select.whereClause,
    whereColumns: columnsIn(select.whereClause, facts, [table, alias]),
    columns: columnsIn(own, facts, [table, alias]),
    isCut:
      skips ||
      select.limitCount !== undefined ||
      select.limitOffset !== undefined ||
      select.distinctClause !== undefined,
    locks: list(select.lockingClause).length > 0,
    isPlain: select.groupClause === undefined && !JSON.stringify(own).includes('"FuncCall"'),
    isDenied,
    isWithin,
    ...(keyAt && keyAt.length > 0 && !keyAt.includes(-1) && !isWithin ? { keyAt } : {}),
  }
}

function writeShape(kind: string, node: Node, values: Values, lore: Lore): WriteShape | undefined {
  const range = inside(node, 'relation')
  if (!range || !/^(Insert|Update|Delete)Stmt$/.test(kind)) return undefined
  const { table, alias, facts } = mention(range, lore)
  if (facts.opaque || facts.opaqueWrites) return undefined
  if (kind === 'InsertStmt') return insertShape(node, table, facts, values)
  if (list(node.fromClause).length + list(node.usingClause).length > 0) return undefined
  return {
    kind: kind === 'UpdateStmt' ? 'update' : 'delete',
    table,
    facts,
    keys: keysOf(node.whereClause, facts, values),
    isWhole: node.whereClause === undefined,
    whereColumns: columnsIn(node.whereClause, facts, [table, alias]),
    ...(kind === 'UpdateStmt'
      ? { sets: setsOf(node.targetList), constants: constantsOf(node.targetList, values) }
      : {}),
    isExclusive: false,
  }
}

function insertShape(insert: Node, table: string, facts: TableFacts, values: Values): WriteShape {
  const given = list(insert.cols).map((column) => `${inside(column, 'ResTarget')?.name}`)
  const columns = given.length > 0 ? given : facts.columns.map(({ name }) => name)
  const rows = itemsOf(insert.selectStmt)?.map((items): GivenRow => {
    const row = new Map<string, string | null>()
    for (const [i, item] of items.entries()) {
      const value = constantOf(item, values)
      if (value !== undefined) row.set(columns[i] ?? '', value)
    }
    return row
  })
  const conflict = inside(insert, 'onConflictClause')
  const isPut = conflict?.action === 'ONCONFLICT_UPDATE'
  const keys = rows?.map((row) => primaryKey(row, facts))
  return {
    kind: isPut ? 'put' : 'insert',
    table,
    facts,
    keys: keys && !keys.includes(undefined) ? new Set(keys as string[]) : undefined,
    isWhole: false,
    whereColumns: isPut ? columnsIn(conflict.whereClause, facts, [table]) : NOTHING,
    ...(isPut ? { sets: setsOf(conflict.targetList) } : {}),
    rows,
    isExclusive: !isPut || conflict.whereClause !== undefined,
  }
}

/** Of VALUES, or of a SELECT without tables. */
function itemsOf(source: unknown): readonly (readonly unknown[])[] | undefined {
  const select = inside(source, 'SelectStmt')
  if (!select || list(select.fromClause).length > 0) return undefined
  const rows = list(select.valuesLists)
  if (rows.length > 0) return rows.map((row) => list(inside(row, 'List')?.items))
  return [list(select.targetList).map((target) => inside(target, 'ResTarget')?.val)]
}

/** By column: it is set to something that does not come from the row. */
function setsOf(targets: unknown): ReadonlyMap<string, boolean> {
  return new Map(
    list(targets).map((target) => {
      const { name, val } = inside(target, 'ResTarget') ?? {}
      const refs = refsIn(val).filter(([first]) => first !== 'excluded')
      return [`${name}`, refs.length === 0 && !JSON.stringify(val ?? null).includes('"SubLink"')]
    }),
  )
}

function constantsOf(targets: unknown, values: Values): GivenRow {
  return new Map(
    list(targets).flatMap((target) => {
      const { name, val } = inside(target, 'ResTarget') ?? {}
      const value = constantOf(val, values)
      return value === undefined ? [] : [[`${name}`, value] as const]
    }),
  )
}

function mention(range: Node, lore: Lore): { table: string; alias: string; facts: TableFacts } {
  const table = `${range.relname}`
  const facts = lore.table(tableName(range))
  return { table, alias: `${inside(range, 'alias')?.aliasname ?? table}`, facts }
}

const primaryOf = ({ uniques }: TableFacts): readonly string[] | undefined =>
  uniques.find(({ isPrimary }) => isPrimary)?.columns ?? undefined

function primaryKey(row: ReadonlyMap<string, string | null>, facts: TableFacts): string | undefined {
  const parts = primaryOf(facts)?.map((name) =>
    keyOf(
      row.get(name),
      facts.columns.find((column) => column.name === name),
    ),
  )
  return parts && !parts.includes(undefined) ? joinKey(parts as string[]) : undefined
}

/** Rows that an answer names by their primary key; undefined: it does not, or not all of them. */
export function keysAnswered(
  { keyAt, facts }: ReadShape,
  { rows, rowCount }: StepResult,
): ReadonlySet<string> | undefined {
  if (!keyAt || rows.length < rowCount) return undefined
  const primary = primaryOf(facts) ?? []
  const keys = rows.map((row) =>
    primaryKey(new Map(primary.map((name, i) => [name, row[keyAt[i] ?? -1] ?? null])), facts),
  )
  return keys.includes(undefined) ? undefined : new Set(keys as string[])
}

function keysOf(where: unknown, facts: TableFacts, values: Values): ReadonlySet<string> | undefined {
  const columns = (primaryOf(facts) ?? []).flatMap(
    (name) => facts.columns.find((column) => column.name === name) ?? [],
  )
  return keysIn(where, columns, (field, name) => plainColumn(field) === name, values)
}

const plainColumn = (node: unknown): string | undefined => names(inside(node, 'ColumnRef')?.fields).at(-1)

/** Names of columns at any depth; of all where the row stands as a whole. */
function columnsIn(node: unknown, { columns }: TableFacts, tables: readonly string[]): ReadonlySet<string> {
  const found = refsIn(node).flatMap((parts) => {
    const last = parts.at(-1)
    const isRow = last === undefined || (parts.length === 1 && tables.includes(last))
    return isRow ? columns.map(({ name }) => name) : [last]
  })
  return new Set(found)
}

function refsIn(node: unknown): (readonly (string | undefined)[])[] {
  if (Array.isArray(node)) return node.flatMap(refsIn)
  if (!isRecord(node)) return []
  const ref = inside(node, 'ColumnRef')
  return ref ? [names(ref.fields)] : Object.values(node).flatMap(refsIn)
}

function unlocksIn(node: unknown, values: Values): string[] {
  if (Array.isArray(node)) return node.flatMap((item) => unlocksIn(item, values))
  if (!isRecord(node)) return []
  const call = inside(node, 'FuncCall')
  if (names(call?.funcname).at(-1) !== 'pg_advisory_unlock')
    return Object.values(node).flatMap((value) => unlocksIn(value, values))
  const parts = list(call?.args).map((argument) => constantOf(argument, values))
  const isKnown = parts.every((text) => typeof text === 'string' && /^-?\d{1,18}$/.test(text))
  return isKnown ? [parts.map((text) => BigInt(text as string)).join()] : []
}
