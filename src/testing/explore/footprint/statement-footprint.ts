import type { Statement } from '../statements/parse-statements.js'
import { childOf, cteNamesOf, isRecord, lastPart, type Node } from '../statements/parse-tree.js'
import type { SchemaInfo } from '../statements/schema-info.js'
import { addCall } from './add-call.js'
import { addDelete, addUpdate } from './add-change.js'
import { addInsert } from './add-insert.js'
import { addSelect } from './add-select.js'
import { EMPTY, type Footprint, KEY_SHARE, type Resource, unbounded } from './footprint.js'
import { FootprintBuilder } from './footprint-builder.js'
import { InsertedRows } from './inserted-rows.js'
import type { Values } from './key-values.js'
import { isTimeWord, readsClock } from './times.js'

/** The nodes that the reader understands. A statement with any other node has an unbounded footprint. */
const KNOWN_NODES = new Set(
  (
    'SelectStmt InsertStmt UpdateStmt DeleteStmt ResTarget ColumnRef String A_Star A_Const ParamRef TypeCast A_Expr ' +
    'BoolExpr NullTest BooleanTest FuncCall RangeVar JoinExpr RangeSubselect RangeFunction SubLink SortBy List A_ArrayExpr CaseExpr ' +
    'CaseWhen CoalesceExpr MinMaxExpr SetToDefault LockingClause CommonTableExpr MultiAssignRef RowExpr ' +
    'SQLValueFunction IndexElem WindowDef Integer Float Boolean CollateClause'
  ).split(' '),
)

const STATEMENTS = /^(?:Select|Insert|Update|Delete)Stmt$/
const SYSTEM_COLUMNS = new Set(['xmin', 'xmax', 'cmin', 'cmax', 'ctid', 'tableoid'])
const NO_NAMES: ReadonlySet<string> = new Set()

/** The footprint of one statement with these parameters. */
export function statementFootprint(statement: Statement, values: Values, schemaInfo: SchemaInfo): Footprint {
  const { kind, tree, isParsed, text } = statement
  switch (kind) {
    case 'begin':
    case 'savepoint':
    case 'setting':
      return EMPTY
    case 'commit':
      return /^\s*prepare/i.test(text) ? unbounded('PREPARE TRANSACTION') : { ...EMPTY, ends: 'commit' }
    case 'rollback':
      return { ...EMPTY, ends: 'rollback' }
    case 'rollback-to':
      return { ...EMPTY, ends: 'savepoint' }
  }
  if (!isParsed) return unbounded(`${JSON.stringify(text)} is not understood`)
  return new StatementReader(values, schemaInfo).read(tree)
}

/** Builds the footprint of one statement from its parse tree, at any depth. */
class StatementReader {
  readonly #builder: FootprintBuilder

  constructor(values: Values, schemaInfo: SchemaInfo) {
    this.#builder = new FootprintBuilder(values, schemaInfo)
  }

  read(tree: unknown): Footprint {
    const [kind = '', node] = isRecord(tree) ? (Object.entries(tree)[0] ?? []) : []
    if (kind === 'LockStmt') return { ...unbounded('LOCK TABLE'), precedesSnapshot: true }
    if (!STATEMENTS.test(kind) || !isRecord(node))
      return unbounded(`${kind.replace(/Stmt$/, '')} is not understood in detail`)
    this.#visit(tree, NO_NAMES)
    const builder = this.#builder
    const { unknownColumn } = builder.columns
    if (unknownColumn !== undefined)
      builder.addUnbounded(`${unknownColumn} is no column of a table that it names`)
    this.#addUnlockedReads()
    this.#addTimes(tree, node)
    this.#addRowOrder(kind, node)
    if (builder.footprint.sequences.size > 0 && !drawsOnce(kind, node))
      builder.addUnbounded('it draws numbers for several rows, or for one that it may have to wait for')
    return builder.footprint
  }

  /** Visits all nodes. `ctes` are the names that stand for CTEs here. */
  #visit(node: unknown, ctes: ReadonlySet<string>): void {
    if (Array.isArray(node)) for (const item of node) this.#visit(item, ctes)
    if (!isRecord(node)) return
    for (const [kind, child] of Object.entries(node)) {
      // guard: explorer.reduce-unknown-node
      if (/^[A-Z]/.test(kind) && !KNOWN_NODES.has(kind))
        this.#builder.addUnbounded(`${kind.replace(/Stmt$/, '')} is not understood in detail`)
      if (STATEMENTS.test(kind) && isRecord(child)) this.#visitStatement(kind, child, ctes)
      else {
        if (isRecord(child)) this.#visitExpression(kind, child)
        this.#visit(child, ctes)
      }
    }
  }

  #visitStatement(kind: string, node: Node, outerCtes: ReadonlySet<string>): void {
    const builder = this.#builder
    builder.depth++
    const ctes = cteNamesOf(node, outerCtes, (cte, names) => this.#visit(cte, names))
    if (kind === 'SelectStmt') addSelect(builder, node, ctes)
    else if (kind === 'InsertStmt') addInsert(builder, node)
    else if (kind === 'UpdateStmt') addUpdate(builder, node, ctes)
    else addDelete(builder, node, ctes)
    for (const [key, value] of Object.entries(node)) {
      // The two sides of a UNION are SELECTs without the name of their kind.
      if ((key === 'larg' || key === 'rarg') && isRecord(value))
        this.#visitStatement('SelectStmt', value, ctes)
      else if (key !== 'withClause') this.#visit(value, ctes)
    }
    builder.depth--
  }

  #visitExpression(kind: string, node: Node): void {
    const builder = this.#builder
    const { schemaInfo, columns } = builder
    switch (kind) {
      case 'FuncCall':
        addCall(builder, node)
        columns.addNewName(lastPart(node.funcname)) // the name of its column in the result
        break
      case 'TypeCast': {
        const type = lastPart(childOf(node, 'typeName')?.names)
        if (type !== undefined && schemaInfo.isUserCast(type)) builder.addUnbounded(`it casts to ${type}`)
        break
      }
      case 'A_Expr': {
        const operator = lastPart(node.name) ?? ''
        if (schemaInfo.isUserOperator(operator)) builder.addUnbounded(`it uses the operator ${operator}`)
        break
      }
      case 'ColumnRef': {
        const column = lastPart(node.fields) ?? ''
        if (SYSTEM_COLUMNS.has(column)) builder.addUnbounded(`it reads ${column}`)
        columns.addColumnRef(node)
        break
      }
      case 'ResTarget':
        columns.addNewName(node.name)
        break
      case 'SubLink':
        builder.combinesRows ||= node.subLinkType === 'ARRAY_SUBLINK'
    }
    columns.addAliasOf(node)
  }

  /** Adds the rows that the statement reads but does not lock. */
  #addUnlockedReads(): void {
    const { reads, locks } = this.#builder.footprint
    const rows = locks.filter(({ isOfExistingRow, strength }) => isOfExistingRow && strength > KEY_SHARE)
    const isLocked = (read: Resource): boolean => rows.some(({ resource }) => resource === read)
    if (rows.length > 0) this.#builder.add({ unlockedReads: reads.filter((read) => !isLocked(read)) })
  }

  #addTimes(tree: unknown, { targetList, returningClause }: Node): void {
    const builder = this.#builder
    const usesClock = readsClock(tree) || builder.values?.some(isTimeWord) === true
    const returnsClock = usesClock && (readsClock(targetList) || readsClock(returningClause))
    builder.add({ timeReadTables: builder.columns.timeReadTables, readsClock: usesClock, returnsClock })
    if (usesClock) builder.add({ timestampedTables: builder.footprint.versionTables })
  }

  #addRowOrder(kind: string, node: Node): void {
    const builder = this.#builder
    const { tables, locks, conditionalRows } = builder.footprint
    const copied = builder.copiesRows ? builder.unsortedTables : NO_NAMES
    const orderSensitiveTables = builder.combinesRows ? tables : copied
    builder.add({ orderSensitiveTables, unorderedResultTables: this.#returnedTables(kind, node) })
    // A statement that locks several rows has checked the condition of some before it waits for another.
    const rowLocks = locks.filter(({ isOfExistingRow }) => isOfExistingRow)
    if (rowLocks.some(({ resource }, i) => i > 0 || resource.keys?.size !== 1))
      builder.add({ reads: conditionalRows }) // guard: explorer.reduce-several-rows
  }

  /** Tables of which the statement returns several rows in no defined order. */
  #returnedTables(kind: string, node: Node): ReadonlySet<string> {
    const { footprint, unsortedTables } = this.#builder
    if (kind === 'SelectStmt') return unsortedTables
    const isQuery = kind === 'InsertStmt' && new InsertedRows(node, [], undefined).rows === undefined
    if (kind === 'InsertStmt' && !isQuery) return NO_NAMES
    if (node.returningClause !== undefined) return footprint.tables
    return isQuery ? unsortedTables : NO_NAMES
  }
}

/** True if the statement draws numbers for one row only, and before it can wait. */
function drawsOnce(kind: string, node: Node): boolean {
  if (kind === 'SelectStmt') return node.fromClause === undefined && node.larg === undefined
  return kind === 'InsertStmt' && new InsertedRows(node, [], undefined).rows?.length === 1
}
