import type { Table } from '../catalog/table.js'
import type { RowCall } from '../row-call.js'
import { WAIT_MS } from '../row-options.js'
import { ROW, RowArgs } from '../sql-values.js'
import {
  conditionsOf,
  inRow,
  keyOf,
  momentOf,
  pickRest,
  placeCondition,
  placeOf,
  type RowPlace,
  type RowRange,
  stateCondition,
  timeColumn,
} from './monitor-conditions.js'
import type { MonitorRule } from './monitor-options.js'
import { assignmentsOf, giveUpCondition, isPossible, type MonitorWrite } from './monitor-sets.js'

/** Rows without a time are counted up to this many. */
const MAX_COUNTED = 10_000

/**
 * Measures the stuck rows before the run: the age of the oldest, and the number of rows without a time. As the first statement
 * of a run, it also checks all columns.
 */
export function surveyCall(table: Table, rule: MonitorRule): RowCall {
  const args = new RowArgs()
  const isStuck = stateCondition(table, rule)
  const time = timeColumn(table, rule)
  conditionsOf(table, rule, args)
  for (const write of ['requeue', 'fail'] as const)
    if (isPossible(rule, write)) assignmentsOf(table, rule, write, args, '')
  // PostgreSQL cannot subtract infinite times, but it can subtract infinite numbers.
  const epoch = (moment: string): string => `extract(epoch from ${moment})`
  const oldest = `select pg_catalog.min(${inRow(time)}) as "at" from ${table.quoted} as ${ROW} where ${isStuck}`
  const ageMs = `(${epoch('$2')} operator(pg_catalog.-) ${epoch(momentOf(time, rule, 'o."at"', args))}) operator(pg_catalog.*) 1000`
  const timeless = `select from ${table.quoted} as ${ROW} where ${isStuck} and ${inRow(time)} is null limit ${MAX_COUNTED}`
  const again = TARGETS.map((field) => stuckAgainCondition(table, rule, field, args)).join(', ')
  const survey = `pg_catalog.json_build_array((select (${ageMs})::text from (${oldest}) o), (select pg_catalog.count(*) from (${timeless}) n), ${again})::text`
  return callOf([`select 'survey'::text, ${survey}, ${keysOnly(table)}`], args)
}

/** The options that name a target state, in the order of the survey. */
export const TARGETS = ['requeueTo', 'failTo'] as const

/**
 * SQL: a row in the target state would be stuck again. The server compares the states, because `citext`, `char(n)`, numbers and
 * collations treat some different texts as equal. The union gives the value the collation of the column, and the cast rounds
 * the value as the column does.
 */
function stuckAgainCondition(
  table: Table,
  rule: MonitorRule,
  field: (typeof TARGETS)[number],
  args: RowArgs,
): string {
  if (rule[field] === undefined) return 'false'
  const status = table.column('statusColumn', rule.statusColumn)
  const value = args.stored(field, status, rule[field])
  const state = `select ${inRow(status)} from ${table.quoted} as ${ROW} where false union all select ${value}`
  return `exists (select from (${state}) as ${ROW}(${status.quoted}) where ${stateCondition(table, rule)})`
}

/**
 * Picks, locks and writes a batch in one statement. When PostgreSQL locks a row, it checks the whole condition again on the
 * row's newest version. A row that was finished, renewed or taken since the snapshot is therefore left alone, and only one of
 * several monitors gets a row. Rows that other sessions have locked are skipped. See
 * src/tables/monitor/monitor.explore.test.ts.
 */
export function sweepCall(
  table: Table,
  rule: MonitorRule,
  write: 'requeue' | 'fail',
  where: RowRange,
): RowCall {
  const args = new RowArgs()
  const conditions = [...conditionsOf(table, rule, args), ...placeCondition(table, rule, where, args)]
  const limit = 'only' in where ? 1 : rule.batch
  return writeRows(
    table,
    rule,
    write,
    `${pickRest(table, rule, conditions)} limit ${limit} for no key update of ${ROW} skip locked`,
    args,
  )
}

/** Lists the rows of a batch without locks, to handle them one by one. */
export function listCall(table: Table, rule: MonitorRule, after: RowPlace | undefined): RowCall {
  const args = new RowArgs()
  const conditions = [...conditionsOf(table, rule, args), ...placeCondition(table, rule, { after }, args)]
  const list = `select 'seen'::text, ${placeOf(table, rule)}, ${keysOnly(table, `${ROW}.`)} from ${table.quoted} as ${ROW}`
  return callOf([`${list}${pickRest(table, rule, conditions)} limit ${rule.batch}`], args)
}

/** Locks the next row for a function that decides about it. */
export function pickCall(table: Table, rule: MonitorRule, after: RowPlace | undefined): RowCall {
  const args = new RowArgs()
  const conditions = [...conditionsOf(table, rule, args), ...placeCondition(table, rule, { after }, args)]
  const pick = `select 'picked'::text, ${placeOf(table, rule)}, ${table.list(`${ROW}.`)} from ${table.quoted} as ${ROW}`
  return callOf(
    [`${pick}${pickRest(table, rule, conditions)} limit 1 for no key update of ${ROW} skip locked`],
    args,
  )
}

/** Writes the function's verdict into the row that its transaction has locked. */
export function verdictCall(table: Table, rule: MonitorRule, write: MonitorWrite, place: RowPlace): RowCall {
  const args = new RowArgs()
  const match = placeCondition(table, rule, { only: place }, args)
  return writeRows(table, rule, write, ` where ${match.join(' and ')} for no key update of ${ROW}`, args)
}

/** Selects only the key, because rows may be large. */
function keysOnly(table: Table, row?: string): string {
  const key = row === undefined ? [] : table.key
  return [...table.columns.values()]
    .map((column) =>
      key.includes(column) ? `${row}${column.quoted}::${column.cast}` : `null::${column.cast}`,
    )
    .join(', ')
}

function callOf(statements: readonly string[], args: RowArgs): RowCall {
  return { name: 'row_claim', statements, args, waitMs: WAIT_MS }
}

/** Writes the picked rows. Also returns rows that a trigger kept from being written. */
function writeRows(
  table: Table,
  rule: MonitorRule,
  write: MonitorWrite,
  rest: string,
  args: RowArgs,
): RowCall {
  const [locked, placed, written] = ['dibs_l', 'dibs_p', 'dibs_w'].map((name) => table.alias(name))
  const key = keyOf(table)
  const picked = key.map((column, n) => `${inRow(column)} as "dibs_${n}"`)
  const isGivenUp = typeof write === 'string' ? giveUpCondition(table, rule, write) : 'false'
  const sets = assignmentsOf(table, rule, write, args, `${placed}."dibs_over"`)
  const match = key.map(
    (column, n) => `${inRow(column)} ${column.equals} ${placed}."dibs_${n}"::${column.cast}`,
  )
  const done =
    typeof write === 'string'
      ? `case when ${placed}."dibs_over" then 'failed' else 'requeued' end`
      : "'handled'"
  const keys = [...table.columns.values()].map((column) => {
    const n = key.indexOf(column)
    return n < 0 ? `null::${column.cast}` : `${placed}."dibs_${n}"::${column.cast}`
  })
  return callOf(
    [
      `with ${locked} as materialized (select ${picked.join(', ')}, ${isGivenUp} as "dibs_over", ${placeOf(table, rule)} as "dibs_detail" from ${table.quoted} as ${ROW}${rest}),
${placed} as materialized (select *, pg_catalog.row_number() over () as "dibs_place" from ${locked}),
${written} as (update ${table.quoted} as ${ROW} set ${sets.join(', ')} from ${placed} where ${match.join(' and ')} returning ${placed}."dibs_place", ${done} as "dibs_done")
select coalesce(${written}."dibs_done", 'unwritten')::text, ${placed}."dibs_detail", ${keys.join(', ')}
from ${placed} left join ${written} on ${written}."dibs_place" operator(pg_catalog.=) ${placed}."dibs_place" order by ${placed}."dibs_place"`,
    ],
    args,
  )
}
