import { InvalidInputError } from '../errors.js'
import { quoteIdentifier } from '../postgres/identifier.js'
import type { AggregateSql } from './aggregate-sql.js'
import { isCutOff } from './kept-column.js'

/**
 * A view that derives what the parent would otherwise keep: its key, what is derived, and then the other columns, so that one which the parent gets later is the last of the view. There PostgreSQL
 * takes it. `isInvokers`: who reads needs rights on both tables, and sees what their policies let see.
 */
export function viewSql(
  sql: AggregateSql,
  name: string,
  isInvokers: boolean,
): { readonly create: string; readonly like: string } {
  const rest = `${isInvokers ? ' with (security_invoker = true)' : ''} as\n${select(sql)}`
  return {
    create: `create or replace view ${name}${rest}`,
    like: `create temporary view "dibs_like"${rest}`,
  }
}

function select(sql: AggregateSql): string {
  const derived = new Set(sql.spec.columns.map(([column]) => column))
  const ofKey = sql.key.find(({ name }) => derived.has(name))
  if (ofKey)
    throw new InvalidInputError(`columns.${ofKey.name}`, 'must not be given: it says which row it is')
  const own = [...sql.parent.columns.values()].filter(({ name: column }) => !derived.has(column))
  // In the select over the children, a child of that name would be taken for it.
  const parent = sql.child.partName('p')
  const list = [
    ...sql.key.map(({ quoted }) => `${parent}.${quoted}`),
    ...sql.spec.columns.map(([column], n) => viewed(sql, `d."dibs_${n}"`, column)),
    ...own.filter((column) => !sql.key.includes(column)).map(({ quoted }) => `${parent}.${quoted}`),
  ]
  return `select ${list.join(', ')}
from ${sql.parent.quoted} as ${parent}
cross join lateral ${sql.derived(sql.key.map(({ quoted }) => `${parent}.${quoted}`))} as d`
}

/** As the parent's column would have kept it; a text that is too long for it is not cut off. */
function viewed({ parent }: AggregateSql, value: string, name: string): string {
  const column = parent.columns.get(name)
  const type = column && isCutOff(column) ? column.cast : column?.stored
  return `${value}${type === undefined ? '' : `::${type}`} as ${quoteIdentifier(name)}`
}
