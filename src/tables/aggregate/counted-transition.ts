import { InvalidInputError } from '../../errors.js'
import { required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import type { Tx } from '../../postgres/executor.js'
import type { RowCall } from '../row-call.js'
import { type RowId, reservedByKey } from '../row-id.js'
import { rowWrite, type SecondWrite } from '../row-write.js'
import { amountColumn, checkDelta, type ExactAmount } from '../rows/adjust.js'
import { type Decimal, readDecimal } from '../rows/decimal.js'
import { readStateChange, type StateChange, transitionWrite } from '../rows/transition.js'
import { type CountedWriteOptions, countedWriteOptions } from '../rows/version-column.js'
import { checkPatch, ROW, type RowArgs, writable } from '../sql-values.js'
import type { AggregateSql } from './aggregate-sql.js'
import { matchByParentIndex } from './key-pair.js'

export interface CountedTransitionOptions extends CountedWriteOptions {
  /** Columns of the parent, and how much to add to each. */
  readonly add: Readonly<Record<string, ExactAmount>>
}

export const countedTransitionOptions = optionTable<CountedTransitionOptions>()('aggregate.transition', {
  ...countedWriteOptions.fields,
  add: required(unchecked()), // by `checkPatch`
})

interface CountedTransition extends ReturnType<typeof readStateChange> {
  readonly add: readonly (readonly [column: string, delta: Decimal])[]
  readonly counter: string | undefined
  readonly tx: Tx | undefined
  readonly waitMs: number
}

export function readCountedTransition(
  step: StateChange,
  options: CountedTransitionOptions,
): CountedTransition {
  const { add, versionColumn: counter, tx, waitMs } = countedTransitionOptions.read(options)
  const deltas = Object.entries(checkPatch('add', add)).map(
    ([column, delta]) => [column, readDecimal(`add.${column}`, delta)] as const,
  )
  if (deltas.length === 0) throw new InvalidInputError('add', 'must name at least one column of the parent')
  return { ...readStateChange(step), add: deltas, counter, tx, waitMs }
}

/**
 * Moves the child and adds to its parent in one statement, so that a caller that finds the child in another state adds nothing. All callers lock the child
 * first, then the parent.
 */
export function countedTransition(sql: AggregateSql, id: RowId, change: CountedTransition): RowCall {
  const moved = sql.foreignKey.find(({ name }) => Object.hasOwn(change.set, name))
  if (moved)
    throw new InvalidInputError(`set.${moved.name}`, 'must not be given: this column identifies the parent')
  const write = transitionWrite(sql.child, id, change, change.waitMs)
  return rowWrite({ ...write, also: (written) => addSql(sql, written, change.add, write.args, write.match) })
}

/** Adds to the parents of these children. `match` is the condition that identifies the child. */
function addSql(
  sql: AggregateSql,
  children: string,
  deltas: CountedTransition['add'],
  args: RowArgs,
  match: string,
): SecondWrite {
  const reserved = reservedByKey(sql.parent, [])
  const sets = deltas.map(([name, delta]) => {
    const column = amountColumn(sql.parent, name, `add.${name}`)
    writable(`add.${name}`, sql.parent, name, reserved)
    checkDelta(`add.${name}`, delta, column)
    const numeric = 'pg_catalog.numeric'
    return `${column.quoted} = (coalesce(${ROW}.${column.quoted}::${numeric}, 0) operator(pg_catalog.+) ${args.place(delta.text, numeric)})::${column.sql}`
  })
  const isParentOf = (row: string): string =>
    sql.keyPairs
      .map((pair) => matchByParentIndex(pair, `${ROW}.${pair[0].quoted}`, `${row}.${pair[1].quoted}`))
      .join(' and ')
  const id = `pg_catalog.json_build_array(${sql.key.map(({ quoted }) => `${ROW}.${quoted}::pg_catalog.text`).join(', ')})::pg_catalog.text`
  const child = `(select ${ROW}.* from ${sql.child.quoted} as ${ROW} where ${match}) as "dibs_c"`
  return {
    write: `update ${sql.parent.quoted} as ${ROW} set ${sets.join(', ')} from ${children} where ${isParentOf(children)}`,
    isWanted: sql.foreignKey.map(({ quoted }) => `${children}.${quoted} is not null`).join(' and '),
    table: sql.parent,
    held: `select array[${id}, ${ROW}.xmax::pg_catalog.text] from ${child} join ${sql.parent.quoted} as ${ROW} on ${isParentOf('"dibs_c"')}`,
  }
}
