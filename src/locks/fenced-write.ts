import { InvalidInputError, NotFoundError, NotWrittenError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Executor, QueryResult, Row } from '../postgres/executor.js'
import { translateError } from '../postgres/fault.js'
import { quoteIdentifier } from '../postgres/identifier.js'
import { hasMethods, nameGiven } from '../postgres/name-given.js'
import { nameRow, showId } from '../postgres/rows/row-id.js'

/** The number of tries. A row that exists and is still not written after these is blocked by a trigger or a policy. */
const MAX_TURNS = 3

/** A write to another store: the row, the columns to set, and the column that keeps the highest fence seen. */
export interface FencedWrite {
  /** The table, with or without its schema: `report` or `sales.report`. */
  readonly table: string
  /** The columns that identify the row, and their values. */
  readonly where: Readonly<Record<string, unknown>>
  readonly set: Readonly<Record<string, unknown>>
  /** The `bigint` column that keeps the highest fence. Default `fence`. */
  readonly fenceColumn?: string | undefined
}

/**
 * Writes the row and the fence, unless a later holder has written the row before. The stored fence refuses an earlier holder that wakes up late. The store
 * needs only the fence column.
 *
 * @returns undefined if a later holder has written the row
 */
export async function writeFenced(
  store: Executor,
  write: FencedWrite,
  fence: number,
): Promise<QueryResult<Row> | undefined> {
  const { table, fenceColumn, where, set } = checkWrite(store, write)
  const fill = (columns: Columns, from: number): string[] =>
    columns.map(([name], n) => `${quoteIdentifier(name)} = $${from + n}`)
  const valuesOf = (columns: Columns): unknown[] => columns.map(([, value]) => value)
  const changes = [...fill(set, 2 + where.length), `${fenceColumn} = $1`].join(', ')
  const named = [nameRow(write.table, write.where), write.table, showId(write.where)] as const
  for (let turn = 1; turn <= MAX_TURNS; turn++) {
    const result = await ask(
      store,
      `update ${table} set ${changes} where ${fill(where, 2).join(' and ')} and (${fenceColumn} is null or ${fenceColumn} <= $1) returning *`,
      [fence, ...valuesOf(where), ...valuesOf(set)],
    )
    if (result.rows.length > 0) return result
    const there = await ask(
      store,
      `select coalesce(${fenceColumn} > $1, false) as is_later from ${table} where ${fill(where, 2).join(' and ')}`,
      [fence, ...valuesOf(where)],
    )
    if (there.rows.length === 0) throw new NotFoundError(...named)
    if (there.rows.some(({ is_later }) => is_later)) return undefined
    // The row was inserted between the two statements.
  }
  throw new NotWrittenError(...named)
}

async function ask(store: Executor, text: string, values: unknown[]): Promise<QueryResult<Row>> {
  try {
    return await store.query(text, values)
  } catch (error) {
    throw translateError(error)
  }
}

type Columns = [name: string, value: unknown][]

function checkWrite(
  store: Executor,
  write: FencedWrite,
): { table: string; fenceColumn: string; where: Columns; set: Columns } {
  if (!hasMethods(store, 'query'))
    throw new InvalidInputError('store', `must have a method query, and is ${nameGiven(store)}`)
  checkOptions(write, ['table', 'where', 'set', 'fenceColumn'])
  const { table, where, set, fenceColumn = 'fence' } = write
  if (typeof table !== 'string')
    throw new InvalidInputError('table', `must be a text, not ${nameGiven(table)}`)
  if (typeof fenceColumn !== 'string')
    throw new InvalidInputError('fenceColumn', `must be a text, not ${nameGiven(fenceColumn)}`)
  if (fenceColumn in Object(set))
    throw new InvalidInputError('set', `must leave out "${fenceColumn}", which is set by itself`)
  return {
    table: table.split('.').map(quoteIdentifier).join('.'),
    fenceColumn: quoteIdentifier(fenceColumn),
    where: columnsOf('where', where),
    set: columnsOf('set', set),
  }
}

function columnsOf(field: 'where' | 'set', given: unknown): Columns {
  if (typeof given !== 'object' || given === null || Array.isArray(given))
    throw new InvalidInputError(field, `must be an object of columns, not ${nameGiven(given)}`)
  const columns = Object.entries(given)
  if (columns.length === 0) throw new InvalidInputError(field, 'must have at least one column, and has none')
  for (const [name, value] of columns)
    if (value === undefined || (value === null && field === 'where'))
      throw new InvalidInputError(field, `must have a value for "${name}"`)
  return columns
}
