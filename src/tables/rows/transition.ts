import { describeRow, idToJson } from '../../errors/describe-row.js'
import { isPlain } from '../../errors/is-plain.js'
import { InvalidInputError, StateConflictError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { checked, required } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { string } from '../../options/value-options.js'
import type { Row } from '../../postgres/executor.js'
import type { Table } from '../catalog/table.js'
import type { RowResult } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { matchId, type RowId, readId, reservedByKey } from '../row-id.js'
import { expectRow, type RowWrite, rowWrite } from '../row-write.js'
import { checkPatch, ROW, RowArgs, type RowPatch, writable } from '../sql-values.js'
import { type CountedWriteOptions, countedWriteOptions, countWrite } from './version-column.js'

export type State = string | number | boolean

/** A move of a row from one state to another. */
export interface StateChange {
  /** The state, or states, that the row must be in. */
  readonly from: State | readonly State[]
  /** The state that the row gets. */
  readonly to: State
  /** The column that holds the state. Default `status`. */
  readonly column?: string | undefined
  /** Other columns to write with the new state. */
  readonly set?: RowPatch | undefined
}

export const stateChange = optionTable<StateChange>()('rows.transition: step', {
  from: required(checked(checkStates)),
  to: required(checked(checkState)),
  column: string({ default: 'status' }),
  set: checked(checkPatch, { default: {} }),
})

export type Transition = <R extends object = Row>(
  table: string,
  id: RowId,
  step: StateChange,
  options?: CountedWriteOptions,
) => Promise<R>

export function transitionOn(rows: Rows): Transition {
  return async <R extends object>(
    table: string,
    id: RowId,
    step: StateChange,
    options?: CountedWriteOptions,
  ) => {
    const { tx, versionColumn: counter, waitMs } = countedWriteOptions.read(options)
    const change = { ...readStateChange(step), counter }
    const results = await rows.call(tx, table, (known) =>
      rowWrite(transitionWrite(known, id, change, waitMs)),
    )
    return expectMoved(results, table, id, change) as R
  }
}

/** Returns the written row, or throws a `StateConflictError` with its current state. */
export function expectMoved(
  results: readonly RowResult[],
  table: string,
  id: RowId,
  { states, column }: ReadStateChange,
): Row {
  const found = expectRow(results, table, id)
  if (found.state === 'written') return found.row
  throw new StateConflictError({
    ...{ subject: describeRow(table, id), table, id: idToJson(id), column },
    expected: states.map(String),
    current: found.detail,
  })
}

/** A checked `StateChange`, with defaults filled in. */
interface ReadStateChange {
  readonly states: readonly State[]
  readonly to: State
  readonly column: string
  readonly set: RowPatch
}

export function readStateChange(step: StateChange): ReadStateChange {
  if (!isPlain(step)) throw new InvalidInputError('step', `must be { from, to }, not ${nameGiven(step)}`)
  const { from, ...read } = stateChange.read(step)
  return { ...read, states: Array.isArray(from) ? from : [from as State] }
}

function checkStates(field: string, from: unknown): void {
  const states: readonly unknown[] = Array.isArray(from) ? from : [from]
  if (states.length === 0) throw new InvalidInputError(field, 'must not be empty')
  for (const state of states) checkState(field, state)
}

function checkState(field: string, state: unknown): void {
  if (state === null || state === undefined)
    throw new InvalidInputError(field, `must be a state, not ${state}`)
}

interface CountedStateChange extends ReadStateChange {
  readonly counter: string | undefined
}

export function transitionWrite(
  table: Table,
  id: RowId,
  { states, to, column, counter, set }: CountedStateChange,
  waitMs: number,
): RowWrite {
  const parts = readId('id', table, id)
  const args = new RowArgs()
  const match = matchId(parts, args)
  const keys = reservedByKey(table, parts)
  const state = writable('column', table, column, keys)
  const counted = countWrite(table, counter, [
    ...keys,
    { name: column, why: 'it is the state, which `to` sets' },
  ])
  const sets = [
    `${state.quoted} = ${args.value('to', state, to)}`,
    ...args.assign('set', table, set, counted.reserved),
    ...counted.sets,
  ]
  const isFrom = `${ROW}.${state.quoted} ${state.equals} any (${args.list('from', state, states)})`
  return {
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${sets.join(', ')} where ${match} and ${isFrom}`, // guard: rows.transition-from
    detail: `${ROW}.${state.quoted}`,
    again: `coalesce(${isFrom}, false)`,
  }
}
