import { isRecord } from './parse-tree.js'
import type { TreeNames } from './tree-names.js'

/** The kinds of statements that the explorer treats differently. */
export type StatementKind =
  /** BEGIN, START TRANSACTION. */
  | 'begin'
  /** COMMIT, END, COMMIT AND CHAIN, PREPARE TRANSACTION: the transaction is over for this connection. */
  | 'commit'
  /** ROLLBACK and ABORT of the whole transaction. */
  | 'rollback'
  /** ROLLBACK TO SAVEPOINT, which is a step of its own, since it releases locks. */
  | 'rollback-to'
  /** SAVEPOINT, RELEASE. */
  | 'savepoint'
  /** SET, RESET, SHOW: neither reads rows nor locks them. */
  | 'setting'
  /** A query whose text neither writes nor locks. The functions that it calls may. */
  | 'read'
  /** A statement that refuses to run in a transaction block. */
  | 'whole'
  /** Everything else. */
  | 'work'

const TRANSACTION_KINDS: Readonly<Record<string, StatementKind>> = {
  TRANS_STMT_BEGIN: 'begin',
  TRANS_STMT_START: 'begin',
  TRANS_STMT_COMMIT: 'commit',
  TRANS_STMT_PREPARE: 'commit',
  TRANS_STMT_ROLLBACK: 'rollback',
  TRANS_STMT_ROLLBACK_TO: 'rollback-to',
  TRANS_STMT_SAVEPOINT: 'savepoint',
  TRANS_STMT_RELEASE: 'savepoint',
  TRANS_STMT_COMMIT_PREPARED: 'whole',
  TRANS_STMT_ROLLBACK_PREPARED: 'whole',
}

const SETTINGS = new Set(['VariableSetStmt', 'VariableShowStmt'])

/** PREPARE and DEALLOCATE read and lock nothing, but are steps, since they take the snapshot at REPEATABLE READ. */
const SNAPSHOTS = new Set(['PrepareStmt', 'DeallocateStmt'])

export const NEEDS_BLOCK: ReadonlySet<string> = new Set([
  'LockStmt',
  'DeclareCursorStmt',
  'ConstraintsSetStmt',
])

/** Statements that call PreventInTransactionBlock in PostgreSQL's source whatever their options. */
const WHOLE = new Set([
  'AlterSubscriptionStmt',
  'AlterSystemStmt',
  'CreateSubscriptionStmt',
  'CreateTableSpaceStmt',
  'CreatedbStmt',
  'DropSubscriptionStmt',
  'DropTableSpaceStmt',
  'DropdbStmt',
])

/** @param type the node's kind, as libpg-query names it: `SelectStmt` */
export function statementKind(type: string, node: Record<string, unknown>, names: TreeNames): StatementKind {
  if (type === 'TransactionStmt') return TRANSACTION_KINDS[`${node.kind}`] ?? 'work'
  if (SETTINGS.has(type)) return 'setting'
  if (SNAPSHOTS.has(type)) return 'read'
  if (WHOLE.has(type) || isWholeByOption(type, node)) return 'whole'
  const runs = type !== 'ExplainStmt' || isOn(node.options, 'analyze')
  if (!runs) return 'read'
  const isQuery =
    type === 'SelectStmt' ||
    (type === 'ExplainStmt' && isRecord(node.query) && node.query.SelectStmt !== undefined)
  return isQuery && !names.locksRows && !names.writes ? 'read' : 'work'
}

function isWholeByOption(type: string, node: Record<string, unknown>): boolean {
  switch (type) {
    case 'VacuumStmt':
      return node.is_vacuumcmd === true // false for ANALYZE
    case 'IndexStmt':
    case 'DropStmt':
      return node.concurrent === true
    case 'ReindexStmt':
      return /_(DATABASE|SCHEMA|SYSTEM)$/.test(`${node.kind}`) || isOn(node.params, 'concurrently')
    case 'ClusterStmt':
      return node.relation === undefined
    case 'DiscardStmt':
      return node.target === 'DISCARD_ALL'
    case 'AlterDatabaseStmt':
      return isOn(node.options, 'tablespace')
    case 'AlterTableStmt':
      return detachesConcurrently(node.cmds)
    default:
      return false
  }
}

function isOn(options: unknown, name: string): boolean {
  const elements = Array.isArray(options) ? options.map((option) => option.DefElem) : []
  const found = elements.filter(isRecord).findLast(({ defname }) => defname === name)
  if (found === undefined) return false
  const value = isRecord(found.arg) ? found.arg : {}
  if (isRecord(value.String)) return !/^(off|false)$/i.test(`${value.String.sval}`)
  return !isRecord(value.Integer) || value.Integer.ival !== undefined // libpg-query leaves zeros out
}

function detachesConcurrently(commands: unknown): boolean {
  const inner = Array.isArray(commands) ? commands.map((command) => command.AlterTableCmd?.def) : []
  return inner.some(
    (def) => isRecord(def) && isRecord(def.PartitionCmd) && def.PartitionCmd.concurrent === true,
  )
}

const SCHEMA_CHANGE = /^(?:Alter|CompositeType|Create|Define|Drop|Index|Refresh|Rename|Rule|View)\w*Stmt$/

/** True if the statement creates, changes or drops objects that are not temporary. */
export function isSchemaChange(type: string, tree: unknown): boolean {
  const text = JSON.stringify(tree)
  const isInto = type === 'SelectStmt' && text.includes('"intoClause"')
  return (SCHEMA_CHANGE.test(type) || isInto) && !text.includes('"relpersistence":"t"')
}
