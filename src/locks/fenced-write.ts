import { describeRow, idToJson } from '../errors/describe-row.js'
import { InvalidInputError, NotFoundError, NotWrittenError } from '../errors.js'
import { hasMethods, nameGiven } from '../options/name-given.js'
import { required, unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { string } from '../options/value-options.js'
import type { Executor, QueryResult, Row } from '../postgres/executor.js'
import { translateError } from '../postgres/fault.js'
import { quoteIdentifier } from '../postgres/identifier.js'

/** The number of tries. A row that exists and is still not written after these is blocked by a trigger or a policy. */
const MAX_TRIES = 3

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

export const fencedWrite = optionTable<FencedWrite>()('lock.writeFenced, term.writeFenced', {
  table: required(string()),
  where: required(unchecked()),
  set: required(unchecked()),
  fenceColumn: string({ default: 'fence' }),
})

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
  const row = [describeRow(write.table, write.where), write.table, idToJson(write.where)] as const
  for (let attempt = 1; attempt <= MAX_TRIES; attempt++) {
    const result = await send(
      store,
      `update ${table} set ${changes} where ${fill(where, 2).join(' and ')} and (${fenceColumn} is null or ${fenceColumn} <= $1) returning *`, // guard: lock.fenced-write
      [fence, ...valuesOf(where), ...valuesOf(set)],
    )
    if (result.rows.length > 0) return result
    const stored = await send(
      store,
      `select coalesce(${fenceColumn} > $1, false) as is_later from ${table} where ${fill(where, 2).join(' and ')}`,
      [fence, ...valuesOf(where)],
    )
    if (stored.rows.length === 0) throw new NotFoundError(...row)
    if (stored.rows.some(({ is_later }) => is_later)) return undefined
    // The row was inserted between the two statements.
  }
  throw new NotWrittenError(...row)
}

async function send(store: Executor, text: string, values: unknown[]): Promise<QueryResult<Row>> {
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
  const { table, where, set, fenceColumn } = fencedWrite.read(write)
  if (fenceColumn in Object(set))
    throw new InvalidInputError('set', `must leave out "${fenceColumn}", which is set by itself`)
  return {
    table: table.split('.').map(quoteIdentifier).join('.'),
    fenceColumn: quoteIdentifier(fenceColumn),
    where: columnsOf('where', where),
    set: columnsOf('set', set),
  }
}

function columnsOf(field: 'where' | 'set', input: unknown): Columns {
  if (typeof input !== 'object' || input === null || Array.isArray(input))
    throw new InvalidInputError(field, `must be an object of columns, not ${nameGiven(input)}`)
  const columns = Object.entries(input)
  if (columns.length === 0) throw new InvalidInputError(field, 'must have at least one column, and has none')
  for (const [name, value] of columns)
    if (value === undefined || (value === null && field === 'where'))
      throw new InvalidInputError(field, `must have a value for "${name}"`)
  return columns
}
