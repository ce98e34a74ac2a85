import { InvalidInputError } from '../../errors.js'
import type { Column, Table } from '../catalog/table.js'
import { OptionAssignments } from '../option-assignments.js'
import { countUp, wholeColumn } from '../rows/claim-columns.js'
import type { RowArgs, RowPatch } from '../sql-values.js'
import { inRow } from './monitor-conditions.js'
import type { MonitorRule } from './monitor-options.js'

/** The write to a row: one of the two actions, or the result of the action function. */
export type MonitorWrite = 'requeue' | 'fail' | { readonly set: RowPatch }

/** SQL: the row has had all its attempts, including the lost one, so it is given up. */
export function giveUpCondition(table: Table, rule: MonitorRule, write: 'requeue' | 'fail'): string {
  if (write === 'fail') return 'true'
  const attempts = attemptsColumn(table, rule)
  if (!attempts) return 'false'
  const left = rule.maxAttempts - (rule.countsAttempts ? 1 : 0)
  return `coalesce(${inRow(attempts)}, 0) operator(pg_catalog.>=) ${left}`
}

function attemptsColumn(table: Table, { attemptsColumn: name }: MonitorRule): Column | undefined {
  return name === undefined ? undefined : wholeColumn(table, 'attemptsColumn', name, ['int2', 'int4', 'int8'])
}

export const isPossible = ({ action, requeueTo, failTo }: MonitorRule, write: 'requeue' | 'fail'): boolean =>
  typeof action === 'function' ? (write === 'requeue' ? requeueTo : failTo) !== undefined : action === write

/** Returns the assignments for each row. `isGivenUp` is the SQL condition for a row that is given up instead of requeued. */
export function assignmentsOf(
  table: Table,
  rule: MonitorRule,
  write: MonitorWrite,
  args: RowArgs,
  isGivenUp: string,
): string[] {
  const sets = new OptionAssignments(table)
  const { fenceColumn, stampColumn } = rule
  if (typeof write === 'string') addVerdict(table, rule, write, args, isGivenUp, sets)
  if (fenceColumn !== undefined) {
    const column = wholeColumn(table, 'fenceColumn', fenceColumn, ['int8'])
    sets.add('fenceColumn', column, `${rule.schema}.next_fence(coalesce(${inRow(column)}, 0), $2)`)
  }
  if (stampColumn !== undefined) {
    const column = table.column('stampColumn', stampColumn)
    sets.add('stampColumn', column, stampOf(column, rule, args))
  }
  const [field, patch] =
    typeof write === 'string' ? (['set', rule.set] as const) : (['action.set', write.set] as const)
  const all = sets.with(field, patch, args)
  if (all.length === 0)
    throw new InvalidInputError(field, 'must not be empty; answer `leave` to change nothing')
  return all
}

function addVerdict(
  table: Table,
  rule: MonitorRule,
  write: 'requeue' | 'fail',
  args: RowArgs,
  isGivenUp: string,
  sets: OptionAssignments,
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
    write === 'fail' ? failed : `case when ${isGivenUp || 'false'} then ${failed} else ${otherwise()} end`
  sets.add(
    'statusColumn',
    status,
    mayFail ? or(stateOf('failTo'), () => stateOf('requeueTo')) : stateOf('requeueTo'),
  )
  if (attempts && rule.countsAttempts) sets.add('attemptsColumn', attempts, countUp(attempts))
  if (rule.errorColumn !== undefined && mayFail) {
    const column = table.column('errorColumn', rule.errorColumn)
    sets.add(
      'errorColumn',
      column,
      or(args.value('reason', column, rule.reason), () => inRow(column)),
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
