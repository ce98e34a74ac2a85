import { InvalidInputError } from '../../errors.js'
import { quoteIdentifier } from '../../postgres/identifier.js'
import type { AggregateSql } from './aggregate-sql.js'
import { isTruncated } from './total-column.js'

/**
 * A view that derives the totals at each read: the key, the totals, and then the other columns of the parent. A column that the
 * parent gets later comes last, where `create or replace view` accepts it. `isInvokers`: readers need rights on both tables,
 * and see the rows that the tables' policies show them.
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
  if (ofKey) throw new InvalidInputError(`columns.${ofKey.name}`, 'must not be given: it identifies the row')
  const own = [...sql.parent.columns.values()].filter(({ name: column }) => !derived.has(column))
  // In the select over the children, a child table of the same name would be meant instead.
  const parent = sql.child.alias('p')
  const list = [
    ...sql.key.map(({ quoted }) => `${parent}.${quoted}`),
    ...sql.spec.columns.map(([column], n) => viewed(sql, `d."dibs_${n}"`, column)),
    ...own.filter((column) => !sql.key.includes(column)).map(({ quoted }) => `${parent}.${quoted}`),
  ]
  return `select ${list.join(', ')}
from ${sql.parent.quoted} as ${parent}
cross join lateral ${sql.derive(sql.key.map(({ quoted }) => `${parent}.${quoted}`))} as d`
}

/** The value as the parent's column would store it. Text that is too long is not truncated. */
function viewed({ parent }: AggregateSql, value: string, name: string): string {
  const column = parent.columns.get(name)
  const type = column && isTruncated(column) ? column.cast : column?.stored
  return `${value}${type === undefined ? '' : `::${type}`} as ${quoteIdentifier(name)}`
}
