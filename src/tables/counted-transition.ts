import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Tx } from '../postgres/executor.js'
import { checkPatch, type RowPatch } from '../postgres/rows/row-args.js'
import type { RowId } from '../postgres/rows/row-id.js'
import { checkWait, type RowCall, rowWrite } from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import type { CountedWriteOptions } from '../postgres/rows/version-column.js'
import type { ExactAmount } from './adjust.js'
import type { AggregateSql } from './aggregate-sql.js'
import { type Decimal, readDecimal } from './decimal.js'
import { readStep, type StateChange, transitionWrite } from './transition.js'

export interface CountedTransitionOptions extends CountedWriteOptions {
  /** Columns of the parent, and what is added to each. */
  readonly add: Readonly<Record<string, ExactAmount>>
  /** What else is written into the child. */
  readonly patch?: RowPatch | undefined
  /** Writes in your transaction. Without it, it is kept at once. */
  readonly tx?: Tx | undefined
}

interface Counted extends ReturnType<typeof readStep> {
  readonly add: readonly (readonly [column: string, delta: Decimal])[]
  readonly patch: RowPatch
  readonly counter: string | undefined
  readonly waitMs: number
}

export function readCounted(step: StateChange, options: CountedTransitionOptions): Counted {
  checkOptions(options, ['add', 'patch', 'tx', 'versionColumn', 'waitMs'])
  const { add, patch = {}, versionColumn: counter, waitMs } = options
  const deltas = Object.entries(checkPatch('add', add)).map(
    ([column, delta]) => [column, readDecimal(`add.${column}`, delta)] as const,
  )
  if (deltas.length === 0) throw new InvalidInputError('add', 'must name at least one column of the parent')
  return { ...readStep(step), add: deltas, patch, counter, waitMs: checkWait(waitMs) }
}

/** One statement for both: whoever finds the child in another state by now adds nothing. The child is locked first, then the parent, by everybody. */
export function countedTransition(sql: AggregateSql, child: Table, id: RowId, asked: Counted): RowCall {
  const moved = sql.foreign.find(({ name }) => Object.hasOwn(asked.patch, name))
  if (moved)
    throw new InvalidInputError(`patch.${moved.name}`, 'must not be given: it says which parent is added to')
  const write = transitionWrite(child, id, asked, asked.waitMs)
  return rowWrite({ ...write, also: (written) => sql.add(written, asked.add, write.args, write.match) })
}
