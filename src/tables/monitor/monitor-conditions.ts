import { InvalidInputError } from '../../errors.js'
import { quoteLiteral } from '../../postgres/statement.js'
import { toColumnText } from '../catalog/column-value.js'
import type { Column, Table } from '../catalog/table.js'
import { exactText, readExactText } from '../exact-text.js'
import { leaseColumn } from '../rows/claim-columns.js'
import { ROW, type RowArgs } from '../sql-values.js'
import type { MonitorRule } from './monitor-options.js'

/** The position of a row in a run, which goes by time and key: their values as texts. */
export type RowPlace = readonly string[]

export const inRow = (column: Column): string => `${ROW}.${column.quoted}`

/** Selects among the stuck rows: all rows after a position, or a single row. */
export type RowRange = { readonly after: RowPlace | undefined } | { readonly only: RowPlace }

/**
 * The query whose plan shows the index: the pick alone, in the order of its time.
 *
 * @param predicate excludes rows. The subselect with `offset 0` hides the constraints of the table from the planner, which also ignores
 *   them when it chooses an index.
 */
export function explainedPick(table: Table, rule: MonitorRule, predicate?: string): string {
  const time = timeColumn(table, rule)
  const now = time.base === 'timestamptz' ? 'pg_catalog.now()' : 'localtimestamp'
  const conditions = [stateCondition(table, rule), `${inRow(time)} operator(pg_catalog.<) ${now}`]
  if (predicate !== undefined) conditions.push(`not (${predicate})`)
  const from = predicate === undefined ? table.quoted : withoutConstraints(table)
  return `select from ${from} as ${ROW} where ${conditions.join(' and ')} order by ${inRow(time)} limit 1`
}

/** A query for the rows, in any state and of any time, for which `predicate` is not true. */
export function explainedRest(table: Table, rule: MonitorRule, predicate: string): string {
  const columns = [table.column('statusColumn', rule.statusColumn), timeColumn(table, rule)]
  const isAny = columns.map((column) => `${inRow(column)} is not null`).join(' and ')
  return `select from ${withoutConstraints(table)} as ${ROW} where ${isAny} and not (${predicate})`
}

const withoutConstraints = (table: Table): string => `(select * from ${table.quoted} offset 0)`

/** The states are literals in the query, so that the planner can prove that a partial index applies. */
export function stateCondition(table: Table, { stuck, statusColumn }: MonitorRule, row = `${ROW}.`): string {
  const column = table.column('statusColumn', statusColumn)
  const states = stuck.map((state) => quoteLiteral(`${toColumnText('stuck', column, state)}`))
  const [first, ...more] = states
  const side = `${row}${column.quoted} ${column.equals}`
  return more.length === 0
    ? `${side} ${first}`
    : `${side} any (array[${states.join(', ')}]::${column.cast}[])`
}

export function timeColumn(table: Table, { timeColumn: name, timeZone }: MonitorRule): Column {
  const column = table.column('timeColumn', name)
  if (column.base === 'timestamptz') {
    if (timeZone !== undefined)
      throw new InvalidInputError(
        'timeZone',
        `must not be given: "${name}" is of the type timestamptz, which is a moment by itself`,
      )
    return column
  }
  if (column.base !== 'timestamp')
    throw new InvalidInputError(
      'timeColumn',
      `must be of the type timestamptz, or timestamp with \`timeZone\`; "${name}" is ${column.sql}`,
    )
  if (timeZone === undefined)
    throw new InvalidInputError(
      'timeZone',
      `must be given: "${name}" is of the type timestamp, which does not say in which time zone it was written, such as 'UTC'; read in another, a row would look hours older than it is`,
    )
  return column
}

/** Converts a time of the column to a `timestamptz`. */
export function momentOf({ base }: Column, { timeZone }: MonitorRule, time: string, args: RowArgs): string {
  return base === 'timestamptz'
    ? time
    : `pg_catalog.timezone(${args.place(`${timeZone}`, 'pg_catalog.text')}, ${time})`
}

export function conditionsOf(table: Table, rule: MonitorRule, args: RowArgs): string[] {
  const time = timeColumn(table, rule)
  const cutoff = `$2 operator(pg_catalog.-) ${args.place(`${rule.olderThanMs} milliseconds`, 'pg_catalog.interval')}`
  const conditions = [stateCondition(table, rule)]
  if (time.base === 'timestamptz') conditions.push(`${inRow(time)} operator(pg_catalog.<) (${cutoff})`)
  else {
    const zone = args.place(`${rule.timeZone}`, 'pg_catalog.text')
    // The first condition can use an index on the column. The second handles the hour that comes twice in autumn: PostgreSQL
    // reads it as the later one, so that a row never looks older than it is.
    conditions.push(
      `${inRow(time)} operator(pg_catalog.<) pg_catalog.timezone(${zone}, ${cutoff})`,
      `pg_catalog.timezone(${zone}, ${inRow(time)}) operator(pg_catalog.<) (${cutoff})`,
    )
  }
  if (rule.leaseColumn !== undefined) {
    const lease = inRow(leaseColumn(table, rule.leaseColumn))
    conditions.push(`(${lease} is null or ${lease} operator(pg_catalog.<=) $2)`) // guard: monitor.live-lease
  }
  return conditions
}

/** Orders by time, then by key: the oldest row first. A run continues after the last row that it has seen. */
export function pickRest(table: Table, rule: MonitorRule, conditions: readonly string[]): string {
  const order = [timeColumn(table, rule), ...keyOf(table)].map(inRow)
  return ` where ${conditions.join(' and ')} order by ${order.join(', ')}`
}

export function keyOf(table: Table): readonly Column[] {
  if (table.key.length > 0) return table.key
  throw new InvalidInputError(
    'table',
    `names ${table.name.input}, which has no primary key; rows are told apart by it`,
  )
}

export function placeOf(table: Table, rule: MonitorRule): string {
  const texts = [timeColumn(table, rule), ...keyOf(table)].map((column) => exactText(column, inRow(column)))
  return `pg_catalog.json_build_array(${texts.join(', ')})::text`
}

export function placeCondition(table: Table, rule: MonitorRule, where: RowRange, args: RowArgs): string[] {
  const place = 'only' in where ? where.only : where.after
  if (place === undefined) return []
  const [moment = '', ...texts] = place
  const parts = keyOf(table).map((column, n) => ({
    column,
    value: args.place(readExactText(column, `${texts[n]}`), column.cast),
  }))
  const isSame = (count: number) =>
    parts.slice(0, count).map(({ column, value }) => `${inRow(column)} ${column.equals} ${value}`)
  if ('only' in where) return isSame(parts.length)
  const time = timeColumn(table, rule)
  const seen = args.place(moment, time.cast)
  const behind = parts.map(({ column, value }, n) =>
    [...isSame(n), `${inRow(column)} ${column.after} ${value}`].join(' and '),
  )
  return [
    `${inRow(time)} operator(pg_catalog.>=) ${seen}`,
    `(${inRow(time)} operator(pg_catalog.>) ${seen} or ${behind.map((one) => `(${one})`).join(' or ')})`,
  ]
}
