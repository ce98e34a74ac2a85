import { isPlain } from '../../errors/is-plain.js'
import { InvalidInputError } from '../../errors.js'
import { nameGiven, showGiven } from '../../options/name-given.js'
import { checked, required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { checkCharacters, checkKey } from '../../postgres/key.js'
import { readTableName } from '../catalog/table-name.js'

/** Defines the totals that a parent row keeps of its children. */
export interface AggregateOptions {
  /** The table that keeps the totals. */
  readonly parent: string
  /** The table whose rows are counted. */
  readonly child: string
  /** The column of the child that holds the parent's primary key. For a key of several columns: all of them, in the order of the key. */
  readonly foreignKey: string | readonly string[]
  /**
   * The parent's columns, and for each an SQL expression over the children of one parent: `count(*)`, `coalesce(sum(amount), 0)`. The expression must be an
   * aggregate, which has a result for no rows too.
   */
  readonly columns: Readonly<Record<string, string>>
}

export const aggregateOptions = optionTable<AggregateOptions>()('dibs.aggregate', {
  parent: required(checked((field, value) => readTableName(value, field))),
  child: required(checked((field, value) => readTableName(value, field))),
  foreignKey: required(checked(checkForeignKey)),
  columns: required(unchecked()), // by `checkColumns`
})

/** Checked `AggregateOptions`, with the name. */
export interface AggregateSpec {
  readonly name: string
  readonly parent: string
  readonly child: string
  readonly foreignKey: readonly string[]
  readonly columns: readonly (readonly [column: string, expression: string])[]
}

const MAX_NAME_BYTES = 200
const MAX_COLUMNS = 100
const MAX_EXPRESSION = 10_000

export function checkAggregate(name: string, options: AggregateOptions): AggregateSpec {
  if (Buffer.byteLength(checkKey('name', name)) > MAX_NAME_BYTES)
    throw new InvalidInputError('name', `must be at most ${MAX_NAME_BYTES} bytes long`)
  const { foreignKey, columns, ...tables } = aggregateOptions.read(options)
  const keys = typeof foreignKey === 'string' ? [foreignKey] : foreignKey
  return { name, ...tables, foreignKey: keys, columns: checkColumns(columns) }
}

function checkForeignKey(field: string, given: unknown): void {
  const keys: unknown = typeof given === 'string' ? [given] : given
  if (!Array.isArray(keys) || keys.length === 0 || keys.some((key) => typeof key !== 'string'))
    throw new InvalidInputError(field, `must be a column of the child, or several, not ${nameGiven(keys)}`)
}

function checkColumns(columns: unknown): AggregateSpec['columns'] {
  if (!isPlain(columns))
    throw new InvalidInputError(
      'columns',
      `must be an object of columns and expressions, as in { total: 'count(*)' }, not ${nameGiven(columns)}`,
    )
  const entries = Object.entries(columns)
  if (entries.length === 0 || entries.length > MAX_COLUMNS)
    throw new InvalidInputError('columns', `must name 1 to ${MAX_COLUMNS} columns, not ${entries.length}`)
  return entries.map(([column, expression]) => {
    const field = `columns.${column}`
    if (typeof expression !== 'string' || expression.trim() === '' || expression.length > MAX_EXPRESSION)
      throw new InvalidInputError(
        field,
        `must be an SQL expression such as 'count(*)', 1 to ${MAX_EXPRESSION} characters long, not ${showGiven(expression)}`,
      )
    checkCharacters(field, expression)
    return [column, expression] as const
  })
}
