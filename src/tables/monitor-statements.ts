import { ROW, RowArgs } from '../postgres/rows/row-args.js'
import { type RowCall, WAIT_MS } from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import {
  at,
  conditionsOf,
  keyOf,
  momentOf,
  pickRest,
  placeCondition,
  placeOf,
  type RowPlace,
  stateCondition,
  timeColumn,
  type Where,
} from './monitor-conditions.js'
import type { MonitorRule } from './monitor-options.js'
import { isPossible, type MonitorWrite, overCondition, setsOf } from './monitor-sets.js'

/** Rows without a time are counted up to this many. */
const MAX_COUNTED = 10_000

/**
 * How many are stuck for how long, before anything is done: the age of the oldest in any of the states, and those without a time. It is the first that is sent in a run,
 * so that all columns are checked here.
 */
export function lookCall(table: Table, rule: MonitorRule): RowCall {
  const args = new RowArgs()
  const isStuck = stateCondition(table, rule)
  const time = timeColumn(table, rule)
  conditionsOf(table, rule, args)
  for (const write of ['requeue', 'fail'] as const)
    if (isPossible(rule, write)) setsOf(table, rule, write, args, '')
  // Infinite times cannot be taken from each other; numbers can.
  const epoch = (moment: string): string => `extract(epoch from ${moment})`
  const oldest = `select pg_catalog.min(${at(time)}) as "at" from ${table.quoted} as ${ROW} where ${isStuck}`
  const ageMs = `(${epoch('$2')} operator(pg_catalog.-) ${epoch(momentOf(time, rule, 'o."at"', args))}) operator(pg_catalog.*) 1000`
  const timeless = `select from ${table.quoted} as ${ROW} where ${isStuck} and ${at(time)} is null limit ${MAX_COUNTED}`
  const again = TARGETS.map((field) => againCondition(table, rule, field, args)).join(', ')
  const told = `pg_catalog.json_build_array((select (${ageMs})::text from (${oldest}) o), (select pg_catalog.count(*) from (${timeless}) n), ${again})::text`
  return callOf([`select 'looked'::text, ${told}, ${keysOnly(table)}`], args)
}

/** Where rows go, in the order in which the look tells of them. */
export const TARGETS = ['requeueTo', 'failTo'] as const

/**
 * Whether a row that is in this state by now would be stuck again. The server compares it, as the column does: `citext`, `char(n)`, numbers and collations take texts for the same that are not. What a union
 * makes of the column and a value has the collation of the column, and the value is as the column would have rounded it.
 */
function againCondition(
  table: Table,
  rule: MonitorRule,
  field: (typeof TARGETS)[number],
  args: RowArgs,
): string {
  if (rule[field] === undefined) return 'false'
  const status = table.column('statusColumn', rule.statusColumn)
  const value = args.stored(field, status, rule[field])
  const state = `select ${at(status)} from ${table.quoted} as ${ROW} where false union all select ${value}`
  return `exists (select from (${state}) as ${ROW}(${status.quoted}) where ${stateCondition(table, rule)})`
}

/**
 * One statement picks, locks and writes a batch. What is locked was stuck at that moment: PostgreSQL looks again at the whole condition, with a row as it is by now, when it
 * locks it; so whoever has finished, renewed or taken the row meanwhile is left alone, and of several monitors one has it. What others have locked is theirs. See
 * src/tables/monitor.explore.test.ts.
 */
export function sweepCall(table: Table, rule: MonitorRule, write: 'requeue' | 'fail', where: Where): RowCall {
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

/** The rows of a batch as they are seen, to be done one by one. */
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

/** Writes what a function has decided into the row that its transaction has locked. */
export function verdictCall(table: Table, rule: MonitorRule, write: MonitorWrite, place: RowPlace): RowCall {
  const args = new RowArgs()
  const match = placeCondition(table, rule, { only: place }, args)
  return writeRows(table, rule, write, ` where ${match.join(' and ')} for no key update of ${ROW}`, args)
}

/** Nothing but the key is answered: rows may be large. */
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

/** A row that is picked and not written is told, too: a trigger keeps it as it is. */
function writeRows(
  table: Table,
  rule: MonitorRule,
  write: MonitorWrite,
  rest: string,
  args: RowArgs,
): RowCall {
  const [locked, placed, written] = ['dibs_l', 'dibs_p', 'dibs_w'].map((name) => table.partName(name))
  const key = keyOf(table)
  const picked = key.map((column, n) => `${at(column)} as "dibs_${n}"`)
  const isOver = typeof write === 'string' ? overCondition(table, rule, write) : 'false'
  const sets = setsOf(table, rule, write, args, `${placed}."dibs_over"`)
  const match = key.map((column, n) => `${at(column)} ${column.equals} ${placed}."dibs_${n}"::${column.cast}`)
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
      `with ${locked} as materialized (select ${picked.join(', ')}, ${isOver} as "dibs_over", ${placeOf(table, rule)} as "dibs_told" from ${table.quoted} as ${ROW}${rest}),
${placed} as materialized (select *, pg_catalog.row_number() over () as "dibs_place" from ${locked}),
${written} as (update ${table.quoted} as ${ROW} set ${sets.join(', ')} from ${placed} where ${match.join(' and ')} returning ${placed}."dibs_place", ${done} as "dibs_done")
select coalesce(${written}."dibs_done", 'unwritten')::text, ${placed}."dibs_told", ${keys.join(', ')}
from ${placed} left join ${written} on ${written}."dibs_place" operator(pg_catalog.=) ${placed}."dibs_place" order by ${placed}."dibs_place"`,
    ],
    args,
  )
}
