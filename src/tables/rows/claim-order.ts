import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { boolean, oneOf } from '../../options/value-options.js'
import type { Table } from '../catalog/table.js'

/** A column to sort by. */
export interface ClaimOrderBy {
  /** The name of the column. */
  readonly column: string
  /** True: the largest value first. Default false. */
  readonly descending?: boolean | undefined
  /** Where rows without a value go. Default, as in PostgreSQL: last, or first if `descending`. */
  readonly nulls?: 'first' | 'last' | undefined
}

export const claimOrderOptions = optionTable<ClaimOrderBy>()('rows.claim: order', {
  column: required(unchecked()), // by `Table.column`
  descending: boolean({ default: false }),
  nulls: oneOf(['first', 'last']),
})

/** One column to sort by, or several, the most important first. */
export type ClaimOrder = string | ClaimOrderBy | readonly (string | ClaimOrderBy)[]

export function readOrder(table: Table, order: ClaimOrder | undefined): string[] {
  if (order === undefined) return []
  const list: readonly unknown[] = Array.isArray(order) ? order : [order]
  return list.map((item, n) => readItem(table, Array.isArray(order) ? `order[${n}]` : 'order', item))
}

function readItem(table: Table, field: string, item: unknown): string {
  if (typeof item === 'string') return table.qualify(table.column(field, item))
  if (typeof item !== 'object' || item === null)
    throw new InvalidInputError(
      field,
      `must be a column, or { column, descending, nulls }, not ${nameGiven(item)}`,
    )
  const { column, descending, nulls } = claimOrderOptions.read(item as ClaimOrderBy, field)
  return `${table.qualify(table.column(field, column))}${descending ? ' desc' : ''}${nulls ? ` nulls ${nulls}` : ''}`
}
