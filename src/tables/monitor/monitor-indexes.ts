import type { Database } from '../../postgres/database.js'
import { quoteIdentifier } from '../../postgres/identifier.js'
import { hashKey } from '../../postgres/key.js'
import { quoteLiteral, statement } from '../../postgres/statement.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { toColumnText } from '../catalog/column-value.js'
import type { Table } from '../catalog/table.js'
import type { Rows } from '../row-executor.js'
import { explainedPick, explainedRest, timeColumn } from './monitor-conditions.js'
import type { MonitorRule } from './monitor-options.js'

/** The index that serves a monitor, or the missing one: the SQL that creates it, and why it is needed. */
export type MonitorIndexes =
  | { readonly ok: true; readonly index: string }
  | { readonly ok: false; readonly missing: { readonly sql: string; readonly why: string } }

/** An index of the table, or of one of its partitions. */
interface IndexDefinition {
  /** True for an index of the table itself. */
  readonly own: boolean
  readonly schema: string
  readonly name: string
  readonly valid: boolean
  readonly columns: readonly IndexColumn[]
  readonly predicate: string | null
}

interface IndexColumn {
  /** Null for an expression. */
  readonly name: string | null
  /** The column's default operators that the index supports. Empty if the index has another collation than the column. */
  readonly serves: readonly number[] | null
}

/** Strategy numbers of a B-tree. */
const LESS = 1
const EQUAL = 3

interface TableIndexes {
  readonly partitioned: boolean
  readonly indexes: readonly IndexDefinition[] | null
}

const readIndexes = statement(
  `select pg_catalog.json_build_object(
     'partitioned', (select c.relkind operator(pg_catalog.=) 'p'::pg_catalog."char" from pg_catalog.pg_class c
       where c.oid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)),
     'indexes', (
       select pg_catalog.json_agg(pg_catalog.json_build_object(
         'own', i.indrelid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)::pg_catalog.oid,
         'schema', n.nspname, 'name', c.relname, 'valid', i.indisvalid and i.indisready,
         'columns', (
           select pg_catalog.json_agg(pg_catalog.json_build_object('name', a.attname, 'serves', (
             select pg_catalog.json_agg(p.amopstrategy)
             from pg_catalog.pg_opclass o
             join pg_catalog.pg_amop p on p.amopfamily operator(pg_catalog.=) o.opcfamily
               and p.amoplefttype operator(pg_catalog.=) o.opcintype and p.amoprighttype operator(pg_catalog.=) o.opcintype
             join pg_catalog.pg_opclass u on u.opcmethod operator(pg_catalog.=) o.opcmethod and u.opcintype operator(pg_catalog.=) o.opcintype and u.opcdefault
             join pg_catalog.pg_amop up on up.amopfamily operator(pg_catalog.=) u.opcfamily
               and up.amopopr operator(pg_catalog.=) p.amopopr and up.amopstrategy operator(pg_catalog.=) p.amopstrategy
             where o.oid operator(pg_catalog.=) k.opclass and k.coll operator(pg_catalog.=) a.attcollation)) order by k.n)
           from rows from (pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indclass::pg_catalog.oid[]),
             pg_catalog.unnest(i.indcollation::pg_catalog.oid[])) with ordinality k(attnum, opclass, coll, n)
           left join pg_catalog.pg_attribute a on a.attrelid operator(pg_catalog.=) i.indrelid and a.attnum operator(pg_catalog.=) k.attnum
             and k.attnum operator(pg_catalog.>) 0::pg_catalog.int2
           where k.n operator(pg_catalog.<=) i.indnkeyatts),
         'predicate', pg_catalog.pg_get_expr(i.indpred, i.indrelid)
       ) order by i.indexrelid)
       from pg_catalog.pg_index i
       join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) i.indexrelid
       join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
       join pg_catalog.pg_am m on m.oid operator(pg_catalog.=) c.relam and m.amname operator(pg_catalog.=) 'btree'::pg_catalog.name
       where i.indrelid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)::pg_catalog.oid
         or i.indrelid operator(pg_catalog.=) any (select t.relid::pg_catalog.oid from pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1::text::text)) t)
     )
   )::text as indexes`,
  { readOnly: true },
)

/**
 * An index serves if it leads from the states to the oldest row. It either leaves out some states and begins with the time, or
 * begins with the state and continues with the time. Order and collation must match the column.
 *
 * The function first checks the catalog, which is right for a small table too. Then it asks the planner, with scans of the
 * whole table disabled, which index it uses. The planner knows the indexes of partitions.
 */
export async function findIndexes(
  database: Database,
  rows: Rows,
  rule: MonitorRule,
): Promise<MonitorIndexes> {
  return database.transaction(async (tx) => {
    const table = await rows.read(tx, rule.table)
    timeColumn(table, rule)
    const [row] = await database.send(readIndexes, [table.quoted], { tx })
    const found: TableIndexes = JSON.parse(`${row?.indexes}`)
    const fitting = await leaveOutWhole(
      tx,
      table,
      rule,
      (found.indexes ?? []).filter((index) => hasShape(index, rule)),
    )
    for (const index of fitting.filter(({ own, valid }) => own && valid))
      if (index.predicate === null || (await isEmpty(tx, explainedPick(table, rule, index.predicate))))
        return { ok: true, index: index.name }
    const used = await plannedIndexes(tx, table, rule)
    const served = used.map(({ schema, name }) =>
      fitting.find((index) => index.valid && index.schema === schema && index.name === name),
    )
    const names = served.map((index) => index?.name)
    if (names.length > 0 && names.every((name) => name !== undefined))
      return { ok: true, index: [...new Set(names)].join(', ') }
    const broken = fitting.find(({ own, valid }) => own && !valid)
    return { ok: false, missing: suggest(table, rule, found.partitioned, broken) }
  })
}

function hasShape({ columns: [first, second], predicate }: IndexDefinition, rule: MonitorRule): boolean {
  return isFor(first, rule.timeColumn, LESS)
    ? predicate !== null
    : isFor(first, rule.statusColumn, EQUAL) && isFor(second, rule.timeColumn, LESS)
}

const isFor = (column: IndexColumn | undefined, name: string, operator: number): boolean =>
  column?.name === name && column.serves?.includes(operator) === true

/** Removes the indexes that begin with the time and contain every row with a state and a time. A scan of such an index would read all finished rows. */
async function leaveOutWhole(
  tx: Transaction,
  table: Table,
  rule: MonitorRule,
  indexes: readonly IndexDefinition[],
): Promise<readonly IndexDefinition[]> {
  // Partitions have many indexes with the same condition.
  const areWhole = new Map<string, boolean>()
  for (const { columns, predicate } of indexes) {
    if (predicate === null || columns[0]?.name !== rule.timeColumn || areWhole.has(predicate)) continue
    areWhole.set(predicate, await isEmpty(tx, explainedRest(table, rule, predicate)))
  }
  return indexes.filter(
    ({ columns: [first], predicate }) => first?.name !== rule.timeColumn || !areWhole.get(`${predicate}`),
  )
}

/**
 * True if the planner can prove that a query has no rows: its plan then reads no table. A proof for the rows that do not meet
 * an index's condition means that the index contains all wanted rows. Only then does the planner use the index.
 */
async function isEmpty(tx: Transaction, select: string): Promise<boolean> {
  await tx.query('set local constraint_exclusion = on')
  const scans = await tx
    .savepoint((part) => plannedScans(part, select))
    // The condition may use columns that this role may not read.
    .catch(() => undefined)
  return scans?.length === 0
}

interface PlanNode {
  readonly 'Node Type': string
  readonly 'Relation Name'?: string
  readonly Schema?: string
  readonly 'Index Name'?: string
  readonly Plans?: readonly PlanNode[]
}

interface UsedIndex {
  readonly schema: string | undefined
  readonly name: string | undefined
}

/** The index that each scan of the plan uses, with sequential and bitmap scans disabled. */
async function plannedIndexes(
  tx: Transaction,
  table: Table,
  rule: MonitorRule,
): Promise<readonly UsedIndex[]> {
  await tx.query('set local enable_seqscan = off')
  await tx.query('set local enable_bitmapscan = off')
  const scans = await plannedScans(tx, explainedPick(table, rule))
  return scans.map((node) => ({ schema: node.Schema, name: node['Index Name'] }))
}

/** The nodes of a plan that read a table. */
async function plannedScans(tx: Transaction, text: string): Promise<readonly PlanNode[]> {
  const { rows } = await tx.query<{ 'QUERY PLAN': unknown }>(`explain (verbose, format json) ${text}`)
  const [first] = readPlans(rows[0]?.['QUERY PLAN'])
  const nodes = first ? flatten(first.Plan) : []
  return nodes.filter((node) => node['Relation Name'] !== undefined)
}

/** A pool may be configured to return JSON unparsed. */
const readPlans = (plans: unknown): readonly { readonly Plan: PlanNode }[] =>
  (typeof plans === 'string' ? JSON.parse(plans) : plans) as readonly { readonly Plan: PlanNode }[]

const flatten = (node: PlanNode): PlanNode[] => [node, ...(node.Plans ?? []).flatMap(flatten)]

function suggest(
  table: Table,
  rule: MonitorRule,
  isPartitioned: boolean,
  broken: IndexDefinition | undefined,
): { readonly sql: string; readonly why: string } {
  const { input } = table.name
  const why = `monitor "${rule.name}" reads all of ${input} in each run: no index leads from its states to the oldest row`
  if (broken) {
    const name = [broken.schema, broken.name].map(quoteIdentifier).join('.')
    return {
      sql: `reindex index concurrently ${name}`,
      why: `${why}; "${broken.name}" would, but it is not valid: making it has failed, or is not at its end`,
    }
  }
  const column = table.column('statusColumn', rule.statusColumn)
  const states = rule.stuck.map((state) => quoteLiteral(`${toColumnText('stuck', column, state)}`).trim())
  const isStuck = `${column.quoted} ${states.length === 1 ? `= ${states[0]}` : `in (${states.join(', ')})`}`
  const name = quoteIdentifier(nameIndex(table, rule))
  // Include the key, which orders rows with the same time. A bulk update creates many of these.
  const keys = [rule.timeColumn, ...table.key.map((column) => column.name)].map(quoteIdentifier).join(', ')
  const how = isPartitioned ? 'create index' : 'create index concurrently'
  return {
    sql: `${how} ${name} on ${table.quoted} (${keys}) where ${isStuck}`,
    why: isPartitioned
      ? `${why}. On a table in partitions it cannot be made concurrently, and keeps writers out meanwhile; to avoid that make it \`on only\` the table, concurrently on each partition, and attach these`
      : why,
  }
}

/** Makes a name from the table, the states and the time column, of at most 63 bytes. */
function nameIndex(table: Table, { stuck, timeColumn: time }: MonitorRule): string {
  const name = [table.name.name, ...stuck, time].join('_').toLowerCase()
  if (Buffer.byteLength(name) <= 63) return name
  let short = name
  while (Buffer.byteLength(short) > 54) short = short.slice(0, -1)
  return `${short}_${hashKey(name).slice(0, 8)}`
}
