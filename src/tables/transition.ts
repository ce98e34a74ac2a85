import { InvalidInputError, StateConflictError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row, Tx } from '../postgres/executor.js'
import { nameGiven } from '../postgres/name-given.js'
import { isPlain, ROW, RowArgs, type RowPatch, writable } from '../postgres/rows/row-args.js'
import { keyTaken, matchId, nameRow, type RowId, readId, showId } from '../postgres/rows/row-id.js'
import { checkWait, expectRow, type RowCall, type Rows, rowWrite } from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import { type CountedWriteOptions, countWrite } from '../postgres/rows/version-column.js'

type State = string | number | boolean

/** From which state to which. */
export interface StateChange {
  /** One state, or several. */
  readonly from: State | readonly State[]
  readonly to: State
  /** The column that holds the state. Default `status`. */
  readonly column?: string | undefined
}

export type Transition = <R extends object = Row>(
  tx: Tx | undefined,
  table: string,
  id: RowId,
  step: StateChange,
  patch?: RowPatch,
  options?: CountedWriteOptions,
) => Promise<R>

export function transitionOn(rows: Rows): Transition {
  return async <R extends object>(
    tx: Tx | undefined,
    table: string,
    id: RowId,
    step: StateChange,
    patch: RowPatch = {},
    options: CountedWriteOptions = {},
  ) => {
    checkOptions(options, ['versionColumn', 'waitMs'])
    if (!isPlain(step)) throw new InvalidInputError('step', `must be { from, to }, not ${nameGiven(step)}`)
    checkOptions(step, ['from', 'to', 'column'])
    const { from, to, column = 'status' } = step
    const states = Array.isArray(from) ? from : [from]
    if (states.length === 0) throw new InvalidInputError('from', 'must not be empty')
    for (const state of [...states, to])
      if (state === null || state === undefined)
        throw new InvalidInputError(state === to ? 'to' : 'from', `must not be ${state}: a state has a name`)
    const waitMs = checkWait(options.waitMs)
    const told = await rows.call(tx, table, (known) =>
      transitionCall(known, id, { states, to, column, counter: options.versionColumn }, patch, waitMs),
    )
    const found = expectRow(told, table, id)
    if (found.state === 'written') return found.row as R
    throw new StateConflictError({
      ...{ subject: nameRow(table, id), table, id: showId(id), column },
      expected: states.map(String),
      current: found.told,
    })
  }
}

interface Asked {
  readonly states: readonly State[]
  readonly to: State
  readonly column: string
  readonly counter: string | undefined
}

function transitionCall(
  table: Table,
  id: RowId,
  { states, to, column, counter }: Asked,
  patch: RowPatch,
  waitMs: number,
): RowCall {
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
    ...args.assign('patch', table, patch, counted.taken),
    ...counted.sets,
  ]
  const isFrom = `${ROW}.${state.quoted} ${state.equals} any (${args.list('from', state, states)})`
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${sets.join(', ')} where ${match} and ${isFrom}`,
    told: `${ROW}.${state.quoted}`,
    again: `coalesce(${isFrom}, false)`,
  })
}
