import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import type { Table } from '../postgres/rows/table.js'

/** A column to sort by. */
export interface ClaimOrderBy {
  readonly column: string
  readonly descending?: boolean | undefined
  /** Where rows without a value go. Default, as in PostgreSQL: last, or first if `descending`. */
  readonly nulls?: 'first' | 'last' | undefined
}

/** One column to sort by, or several, the most important first. */
export type ClaimOrder = string | ClaimOrderBy | readonly (string | ClaimOrderBy)[]

export function readOrder(table: Table, order: ClaimOrder | undefined): string[] {
  if (order === undefined) return []
  const list: readonly unknown[] = Array.isArray(order) ? order : [order]
  return list.map((item, n) => readItem(table, Array.isArray(order) ? `order[${n}]` : 'order', item))
}

function readItem(table: Table, field: string, item: unknown): string {
  if (typeof item === 'string') return table.own(table.column(field, item))
  if (typeof item !== 'object' || item === null)
    throw new InvalidInputError(
      field,
      `must be a column, or { column, descending, nulls }, not ${nameGiven(item)}`,
    )
  checkOptions(item, ['column', 'descending', 'nulls'])
  const { column, descending = false, nulls } = item as Partial<ClaimOrderBy>
  if (typeof descending !== 'boolean')
    throw new InvalidInputError(`${field}.descending`, `must be true or false`)
  if (nulls !== undefined && nulls !== 'first' && nulls !== 'last')
    throw new InvalidInputError(`${field}.nulls`, `must be 'first' or 'last', not ${showGiven(nulls)}`)
  return `${table.own(table.column(field, column))}${descending ? ' desc' : ''}${nulls ? ` nulls ${nulls}` : ''}`
}
