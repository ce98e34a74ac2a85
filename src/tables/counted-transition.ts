import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { checkPatch, ROW, type RowArgs, writable } from '../postgres/rows/row-args.js'
import { keyTaken, type RowId } from '../postgres/rows/row-id.js'
import { checkWait, type RowCall, rowWrite, type SecondWrite } from '../postgres/rows/rows.js'
import type { CountedWriteOptions } from '../postgres/rows/version-column.js'
import { amountColumn, checkDelta, type ExactAmount } from './adjust.js'
import type { AggregateSql } from './aggregate-sql.js'
import { type Decimal, readDecimal } from './decimal.js'
import { parentHas } from './key-pair.js'
import { readStep, type StateChange, transitionWrite } from './transition.js'

export interface CountedTransitionOptions extends CountedWriteOptions {
  /** Columns of the parent, and how much to add to each. */
  readonly add: Readonly<Record<string, ExactAmount>>
}

interface Counted extends ReturnType<typeof readStep> {
  readonly add: readonly (readonly [column: string, delta: Decimal])[]
  readonly counter: string | undefined
  readonly waitMs: number
}

export function readCounted(step: StateChange, options: CountedTransitionOptions): Counted {
  checkOptions(options, ['add', 'tx', 'versionColumn', 'waitMs'])
  const { add, versionColumn: counter, waitMs } = options
  const deltas = Object.entries(checkPatch('add', add)).map(
    ([column, delta]) => [column, readDecimal(`add.${column}`, delta)] as const,
  )
  if (deltas.length === 0) throw new InvalidInputError('add', 'must name at least one column of the parent')
  return { ...readStep(step), add: deltas, counter, waitMs: checkWait(waitMs) }
}

/**
 * Moves the child and adds to its parent in one statement, so that a caller that finds the child in another state adds nothing. All callers lock the child
 * first, then the parent.
 */
export function countedTransition(sql: AggregateSql, id: RowId, asked: Counted): RowCall {
  const moved = sql.foreign.find(({ name }) => Object.hasOwn(asked.set, name))
  if (moved)
    throw new InvalidInputError(`set.${moved.name}`, 'must not be given: it says which parent is added to')
  const write = transitionWrite(sql.child, id, asked, asked.waitMs)
  return rowWrite({ ...write, also: (written) => addSql(sql, written, asked.add, write.args, write.match) })
}

/** Adds to the parents of these children. `match` is the condition that identifies the child. */
function addSql(
  sql: AggregateSql,
  children: string,
  deltas: Counted['add'],
  args: RowArgs,
  match: string,
): SecondWrite {
  const taken = keyTaken(sql.parent, [])
  const sets = deltas.map(([name, delta]) => {
    const column = amountColumn(sql.parent, name, `add.${name}`)
    writable(`add.${name}`, sql.parent, name, taken)
    checkDelta(`add.${name}`, delta, column)
    const numeric = 'pg_catalog.numeric'
    return `${column.quoted} = (coalesce(${ROW}.${column.quoted}::${numeric}, 0) operator(pg_catalog.+) ${args.place(delta.text, numeric)})::${column.sql}`
  })
  const isParentOf = (row: string): string =>
    sql.pairs
      .map((pair) => parentHas(pair, `${ROW}.${pair[0].quoted}`, `${row}.${pair[1].quoted}`))
      .join(' and ')
  const id = `pg_catalog.json_build_array(${sql.key.map(({ quoted }) => `${ROW}.${quoted}::pg_catalog.text`).join(', ')})::pg_catalog.text`
  const child = `(select ${ROW}.* from ${sql.child.quoted} as ${ROW} where ${match}) as "dibs_c"`
  return {
    write: `update ${sql.parent.quoted} as ${ROW} set ${sets.join(', ')} from ${children} where ${isParentOf(children)}`,
    isWanted: sql.foreign.map(({ quoted }) => `${children}.${quoted} is not null`).join(' and '),
    table: sql.parent,
    held: `select array[${id}, ${ROW}.xmax::pg_catalog.text] from ${child} join ${sql.parent.quoted} as ${ROW} on ${isParentOf('"dibs_c"')}`,
  }
}
