import { InvalidInputError, StateConflictError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row } from '../postgres/executor.js'
import { nameGiven } from '../postgres/name-given.js'
import { isPlain, ROW, RowArgs, type RowPatch, writable } from '../postgres/rows/row-args.js'
import { keyTaken, matchId, nameRow, type RowId, readId, showId } from '../postgres/rows/row-id.js'
import {
  checkWait,
  expectRow,
  type Rows,
  type RowWrite,
  rowWrite,
  type ToldRow,
} from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import { type CountedWriteOptions, countWrite } from '../postgres/rows/version-column.js'

export type State = string | number | boolean

/** A move of a row from one state to another. */
export interface StateChange {
  /** The state, or states, that the row must be in. */
  readonly from: State | readonly State[]
  readonly to: State
  /** The column that holds the state. Default `status`. */
  readonly column?: string | undefined
  /** Other columns to write with the new state. */
  readonly set?: RowPatch | undefined
}

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
    options: CountedWriteOptions = {},
  ) => {
    checkOptions(options, ['tx', 'versionColumn', 'waitMs'])
    const asked = { ...readStep(step), counter: options.versionColumn }
    const waitMs = checkWait(options.waitMs)
    const told = await rows.call(options.tx, table, (known) =>
      rowWrite(transitionWrite(known, id, asked, waitMs)),
    )
    return expectMoved(told, table, id, asked) as R
  }
}

/** Returns the written row, or throws a `StateConflictError` with its current state. */
export function expectMoved(
  told: readonly ToldRow[],
  table: string,
  id: RowId,
  { states, column }: Step,
): Row {
  const found = expectRow(told, table, id)
  if (found.state === 'written') return found.row
  throw new StateConflictError({
    ...{ subject: nameRow(table, id), table, id: showId(id), column },
    expected: states.map(String),
    current: found.told,
  })
}

/** A checked `StateChange`, with defaults filled in. */
interface Step {
  readonly states: readonly State[]
  readonly to: State
  readonly column: string
  readonly set: RowPatch
}

export function readStep(step: StateChange): Step {
  if (!isPlain(step)) throw new InvalidInputError('step', `must be { from, to }, not ${nameGiven(step)}`)
  checkOptions(step, ['from', 'to', 'column', 'set'])
  const { from, to, column = 'status', set = {} } = step
  const states = Array.isArray(from) ? from : [from]
  if (states.length === 0) throw new InvalidInputError('from', 'must not be empty')
  for (const state of [...states, to])
    if (state === null || state === undefined)
      throw new InvalidInputError(state === to ? 'to' : 'from', `must not be ${state}: a state has a name`)
  return { states, to, column, set }
}

interface Asked extends Step {
  readonly counter: string | undefined
}

export function transitionWrite(
  table: Table,
  id: RowId,
  { states, to, column, counter, set }: Asked,
  waitMs: number,
): RowWrite {
  const parts = readId('id', table, id)
  const args = new RowArgs()
  const match = matchId(parts, args)
  const keys = keyTaken(table, parts)
  const state = writable('column', table, column, keys)
  const counted = countWrite(table, counter, [
    ...keys,
    { name: column, why: 'it is the state, which `to` says' },
  ])
  const sets = [
    `${state.quoted} = ${args.value('to', state, to)}`,
    ...args.assign('set', table, set, counted.taken),
    ...counted.sets,
  ]
  const isFrom = `${ROW}.${state.quoted} ${state.equals} any (${args.list('from', state, states)})`
  return {
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${sets.join(', ')} where ${match} and ${isFrom}`,
    told: `${ROW}.${state.quoted}`,
    again: `coalesce(${isFrom}, false)`,
  }
}
