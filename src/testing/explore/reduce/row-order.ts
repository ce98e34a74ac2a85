import type { TableFacts } from '../statements/table-facts.js'
import { isRecord } from '../statements/tree-names.js'
import { inside, list, type Node, names } from './node.js'

/** Rows come by something that no two of them have in common. */
export function isSortedByKey({ sortClause, targetList }: Node, { uniques, columns }: TableFacts): boolean {
  const by = list(sortClause).map((sort) => inside(inside(inside(sort, 'SortBy'), 'node'), 'ColumnRef'))
  const sorted = by.map((column) => names(column?.fields).at(-1))
  // `select n as id … order by id` sorts by n.
  const given = list(targetList).map((target) => inside(target, 'ResTarget')?.name)
  const isSure = (name: string): boolean =>
    sorted.includes(name) &&
    !given.includes(name) &&
    columns.some((column) => column.name === name && column.isNotNull)
  return uniques.some((unique) => unique.columns?.every(isSure))
}

/** LIMIT, OFFSET and DISTINCT ON leave rows out by the order in which they come. */
export const picksByOrder = ({ limitCount, limitOffset, distinctClause }: Node): boolean =>
  limitCount !== undefined ||
  limitOffset !== undefined ||
  list(distinctClause).some((one) => isRecord(one) && Object.keys(one).length > 0)

/** A call whose answer depends on the order in which rows come: aggregates that keep them, and windows. */
export const gathersRows = ({ funcname, over, agg_order, agg_within_group }: Node): boolean =>
  over !== undefined ||
  agg_order !== undefined ||
  agg_within_group !== undefined ||
  /agg(?:_|$)|^any_value$/.test(names(funcname).at(-1) ?? '')

const SUMS = /^(?:sum|avg|var|std|corr|covar|regr)/
const EXACT_TYPES = new Set(['int2', 'int4', 'int8', 'numeric', 'money', 'interval', 'bool'])

/** It adds numbers up, perhaps of a kind that is rounded, where the order decides about the last digits. */
export function roundsSums({ funcname, args }: Node, tables: readonly TableFacts[]): boolean {
  if (!SUMS.test(names(funcname).at(-1) ?? '')) return false
  const columns = tables.flatMap((table) => table.columns)
  const isExact = (name: string): boolean => {
    const found = columns.filter((column) => column.name === name)
    return found.length > 0 && found.every(({ type }) => EXACT_TYPES.has(type))
  }
  return !columnsIn(args).every(isExact) || /"TypeCast"|"FuncCall"/.test(JSON.stringify(args))
}

/** Names of the columns in an expression. */
function columnsIn(node: unknown): readonly string[] {
  if (Array.isArray(node)) return node.flatMap(columnsIn)
  if (!isRecord(node)) return []
  const column = inside(node, 'ColumnRef')
  return column ? [names(column.fields).at(-1) ?? ''] : Object.values(node).flatMap(columnsIn)
}
