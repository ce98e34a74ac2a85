import { InvalidInputError } from '../errors.js'
import { type RowArgs, type RowPatch, type Taken, writable } from '../postgres/rows/row-args.js'
import { keyTaken } from '../postgres/rows/row-id.js'
import type { Column, Table } from '../postgres/rows/table.js'
import { countUp, wholeColumn } from './claim-columns.js'
import { at } from './monitor-conditions.js'
import type { MonitorRule } from './monitor-options.js'

/** What is done to rows: one of the two actions, or what a function has answered. */
export type MonitorWrite = 'requeue' | 'fail' | { readonly set: RowPatch }

/** Whether a row is given up: it was tried as often as it may be, the attempt that was lost among them. */
export function overCondition(table: Table, rule: MonitorRule, write: 'requeue' | 'fail'): string {
  if (write === 'fail') return 'true'
  const attempts = attemptsColumn(table, rule)
  if (!attempts) return 'false'
  const left = rule.maxAttempts - (rule.countsAttempts ? 1 : 0)
  return `coalesce(${at(attempts)}, 0) operator(pg_catalog.>=) ${left}`
}

function attemptsColumn(table: Table, { attemptsColumn: name }: MonitorRule): Column | undefined {
  return name === undefined ? undefined : wholeColumn(table, 'attemptsColumn', name, ['int2', 'int4', 'int8'])
}

export const isPossible = ({ action, requeueTo, failTo }: MonitorRule, write: 'requeue' | 'fail'): boolean =>
  typeof action === 'function' ? (write === 'requeue' ? requeueTo : failTo) !== undefined : action === write

/** What is written into each row; `isOver` is where it stands whether a row that was to be put back is given up. */
export function setsOf(
  table: Table,
  rule: MonitorRule,
  write: MonitorWrite,
  args: RowArgs,
  isOver: string,
): string[] {
  const sets: string[] = []
  const taken: Taken[] = [...keyTaken(table, [])]
  const add = (option: string, column: Column, value: string): void => {
    writable(option, table, column.name, taken)
    taken.push({ name: column.name, why: `it is what \`${option}\` says` })
    sets.push(`${column.quoted} = ${value}`)
  }
  const { fenceColumn, stampColumn } = rule
  if (typeof write === 'string') addVerdict(table, rule, write, args, isOver, add)
  if (fenceColumn !== undefined) {
    const column = wholeColumn(table, 'fenceColumn', fenceColumn, ['int8'])
    add('fenceColumn', column, `${rule.schema}.next_fence(coalesce(${at(column)}, 0), $2)`)
  }
  if (stampColumn !== undefined) {
    const column = table.column('stampColumn', stampColumn)
    add('stampColumn', column, stampOf(column, rule, args))
  }
  const [field, patch] =
    typeof write === 'string' ? (['set', rule.set] as const) : (['action.set', write.set] as const)
  sets.push(...args.assign(field, table, patch, taken))
  if (sets.length === 0)
    throw new InvalidInputError(field, 'must not be empty; answer `leave` to change nothing')
  return sets
}

type AddSet = (option: string, column: Column, value: string) => void

function addVerdict(
  table: Table,
  rule: MonitorRule,
  write: 'requeue' | 'fail',
  args: RowArgs,
  isOver: string,
  add: AddSet,
): void {
  const attempts = attemptsColumn(table, rule)
  const mayFail = write === 'fail' || attempts !== undefined
  const status = table.column('statusColumn', rule.statusColumn)
  const stateOf = (field: 'requeueTo' | 'failTo'): string => {
    if (rule[field] === undefined)
      throw new InvalidInputError(field, `must be given where the function answers '${write}'`)
    return args.value(field, status, rule[field])
  }
  const or = (failed: string, otherwise: () => string): string =>
    write === 'fail' ? failed : `case when ${isOver || 'false'} then ${failed} else ${otherwise()} end`
  add(
    'statusColumn',
    status,
    mayFail ? or(stateOf('failTo'), () => stateOf('requeueTo')) : stateOf('requeueTo'),
  )
  if (attempts && rule.countsAttempts) add('attemptsColumn', attempts, countUp(attempts))
  if (rule.errorColumn !== undefined && mayFail) {
    const column = table.column('errorColumn', rule.errorColumn)
    add(
      'errorColumn',
      column,
      or(args.value('reason', column, rule.reason), () => at(column)),
    )
  }
}

function stampOf(column: Column, { timeZone }: MonitorRule, args: RowArgs): string {
  if (column.base === 'timestamptz') return '$2'
  if (column.base === 'timestamp' && timeZone !== undefined)
    return `pg_catalog.timezone(${args.place(timeZone, 'pg_catalog.text')}, $2)`
  throw new InvalidInputError(
    'stampColumn',
    `must be of the type timestamptz, or timestamp with \`timeZone\`; "${column.name}" is ${column.sql}`,
  )
}
