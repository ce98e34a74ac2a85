import { InvalidInputError } from '../errors.js'
import { toColumnText } from '../postgres/rows/column-value.js'
import { ROW, type RowArgs } from '../postgres/rows/row-args.js'
import type { Column, Table } from '../postgres/rows/table.js'
import { quoteLiteral } from '../postgres/statement.js'
import { leaseColumn } from './claim-columns.js'
import { exactText, readExactText } from './exact-text.js'
import type { MonitorRule } from './monitor-options.js'

/** Where a row stands in the order of a run: its time and its key, as texts. */
export type RowPlace = readonly string[]

export const at = (column: Column): string => `${ROW}.${column.quoted}`

/** Which rows of those that are stuck: all behind one, or one alone. */
export type Where = { readonly after: RowPlace | undefined } | { readonly only: RowPlace }

/**
 * What the planner is asked about: the pick alone, in the order of its time.
 *
 * @param predicate of rows that are left out. What the constraints of the table say of these is not looked at, as it is not when an index is chosen: a part of a query has none.
 */
export function explainedPick(table: Table, rule: MonitorRule, predicate?: string): string {
  const time = timeColumn(table, rule)
  const now = time.base === 'timestamptz' ? 'pg_catalog.now()' : 'localtimestamp'
  const conditions = [stateCondition(table, rule), `${at(time)} operator(pg_catalog.<) ${now}`]
  if (predicate !== undefined) conditions.push(`not (${predicate})`)
  const from = predicate === undefined ? table.quoted : barely(table)
  return `select from ${from} as ${ROW} where ${conditions.join(' and ')} order by ${at(time)} limit 1`
}

/** The same for rows in any state, of any time: those of which `predicate` is not true. */
export function explainedRest(table: Table, rule: MonitorRule, predicate: string): string {
  const columns = [table.column('statusColumn', rule.statusColumn), timeColumn(table, rule)]
  const isAny = columns.map((column) => `${at(column)} is not null`).join(' and ')
  return `select from ${barely(table)} as ${ROW} where ${isAny} and not (${predicate})`
}

const barely = (table: Table): string => `(select * from ${table.quoted} offset 0)`

/** States stand in the text, so that the server can tell that a partial index fits. */
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

/** A time of the column as a moment. */
export function momentOf({ base }: Column, { timeZone }: MonitorRule, time: string, args: RowArgs): string {
  return base === 'timestamptz'
    ? time
    : `pg_catalog.timezone(${args.place(`${timeZone}`, 'pg_catalog.text')}, ${time})`
}

export function conditionsOf(table: Table, rule: MonitorRule, args: RowArgs): string[] {
  const time = timeColumn(table, rule)
  const cutoff = `$2 operator(pg_catalog.-) ${args.place(`${rule.olderThanMs} milliseconds`, 'pg_catalog.interval')}`
  const conditions = [stateCondition(table, rule)]
  if (time.base === 'timestamptz') conditions.push(`${at(time)} operator(pg_catalog.<) (${cutoff})`)
  else {
    const zone = args.place(`${rule.timeZone}`, 'pg_catalog.text')
    // An index has the column as it is. But an hour that comes twice, in autumn, must not make a row look older than it is: PostgreSQL reads it as the second.
    conditions.push(
      `${at(time)} operator(pg_catalog.<) pg_catalog.timezone(${zone}, ${cutoff})`,
      `pg_catalog.timezone(${zone}, ${at(time)}) operator(pg_catalog.<) (${cutoff})`,
    )
  }
  if (rule.leaseColumn !== undefined) {
    const lease = at(leaseColumn(table, rule.leaseColumn))
    conditions.push(`(${lease} is null or ${lease} operator(pg_catalog.<=) $2)`)
  }
  return conditions
}

/** By time, and where that is the same by key: the oldest first, and a run goes on behind what it has seen. */
export function pickRest(table: Table, rule: MonitorRule, conditions: readonly string[]): string {
  const order = [timeColumn(table, rule), ...keyOf(table)].map(at)
  return ` where ${conditions.join(' and ')} order by ${order.join(', ')}`
}

export function keyOf(table: Table): readonly Column[] {
  if (table.key.length > 0) return table.key
  throw new InvalidInputError(
    'table',
    `names ${table.name.given}, which has no primary key; rows are told apart by it`,
  )
}

export function placeOf(table: Table, rule: MonitorRule): string {
  const texts = [timeColumn(table, rule), ...keyOf(table)].map((column) => exactText(column, at(column)))
  return `pg_catalog.json_build_array(${texts.join(', ')})::text`
}

export function placeCondition(table: Table, rule: MonitorRule, where: Where, args: RowArgs): string[] {
  const place = 'only' in where ? where.only : where.after
  if (place === undefined) return []
  const [moment = '', ...texts] = place
  const parts = keyOf(table).map((column, n) => ({
    column,
    value: args.place(readExactText(column, `${texts[n]}`), column.cast),
  }))
  const isSame = (count: number) =>
    parts.slice(0, count).map(({ column, value }) => `${at(column)} ${column.equals} ${value}`)
  if ('only' in where) return isSame(parts.length)
  const time = timeColumn(table, rule)
  const seen = args.place(moment, time.cast)
  const behind = parts.map(({ column, value }, n) =>
    [...isSame(n), `${at(column)} ${column.after} ${value}`].join(' and '),
  )
  return [
    `${at(time)} operator(pg_catalog.>=) ${seen}`,
    `(${at(time)} operator(pg_catalog.>) ${seen} or ${behind.map((one) => `(${one})`).join(' or ')})`,
  ]
}
