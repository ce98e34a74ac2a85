import { isRecord, type TreeNames } from './tree-names.js'

/** What a statement is to a scheduler. */
export type StatementKind =
  /** BEGIN, START TRANSACTION. */
  | 'begin'
  /** COMMIT, END, COMMIT AND CHAIN, PREPARE TRANSACTION: the transaction is over for this connection. */
  | 'commit'
  /** ROLLBACK and ABORT of the whole transaction. */
  | 'rollback'
  /** ROLLBACK TO SAVEPOINT: it frees locks, so it is a step of its own. */
  | 'rollback-to'
  /** SAVEPOINT, RELEASE. */
  | 'savepoint'
  /** SET, RESET, SHOW: neither reads rows nor locks them. */
  | 'setting'
  /** A query that by its own words neither writes nor locks; what its functions do is another question. */
  | 'read'
  /** Refuses a transaction block. */
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

/** They read and lock nothing, but take the snapshot of a REPEATABLE READ transaction, so they are steps. */
const SNAPSHOTS = new Set(['PrepareStmt', 'DeallocateStmt'])

export const NEEDS_BLOCK: ReadonlySet<string> = new Set([
  'LockStmt',
  'DeclareCursorStmt',
  'ConstraintsSetStmt',
])

/** Those that call PreventInTransactionBlock in PostgreSQL's source whatever their options. */
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
      return node.is_vacuumcmd === true // else it is ANALYZE
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

/** What is temporary goes with its session. */
export function isSchemaChange(type: string, tree: unknown): boolean {
  const text = JSON.stringify(tree)
  const isInto = type === 'SelectStmt' && text.includes('"intoClause"')
  return (SCHEMA_CHANGE.test(type) || isInto) && !text.includes('"relpersistence":"t"')
}
