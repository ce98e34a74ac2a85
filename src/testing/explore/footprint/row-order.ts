import {
  childOf,
  columnOf,
  columnRefsIn,
  isRecord,
  lastPart,
  listOf,
  type Node,
  someNode,
} from '../statements/parse-tree.js'
import type { TableInfo } from '../statements/schema-info.js'

/** True if ORDER BY has all columns of a unique key, so that the order of the rows is defined. */
export function isSortedByKey({ sortClause, targetList }: Node, { uniques, columns }: TableInfo): boolean {
  const sorted = listOf(sortClause).map((sort) => columnOf(childOf(sort, 'SortBy')?.node))
  // `select n as id … order by id` sorts by n.
  const aliases = listOf(targetList).map((target) => childOf(target, 'ResTarget')?.name)
  const isSortedBy = (name: string): boolean =>
    sorted.includes(name) &&
    !aliases.includes(name) &&
    columns.some((column) => column.name === name && column.isNotNull)
  return uniques.some((unique) => unique.columns?.every(isSortedBy))
}

/** True for LIMIT, OFFSET and DISTINCT ON, which leave out rows by the order of the scan. */
export const picksByOrder = ({ limitCount, limitOffset, distinctClause }: Node): boolean =>
  limitCount !== undefined ||
  limitOffset !== undefined ||
  listOf(distinctClause).some((one) => isRecord(one) && Object.keys(one).length > 0)

/** True for a call whose result depends on the order of its input rows: array_agg and the like, and window functions. */
export const combinesRows = ({ funcname, over, agg_order, agg_within_group }: Node): boolean =>
  over !== undefined ||
  agg_order !== undefined ||
  agg_within_group !== undefined ||
  /agg(?:_|$)|^any_value$/.test(lastPart(funcname) ?? '')

const SUMS = /^(?:sum|avg|var|std|corr|covar|regr)/
const EXACT_TYPES = new Set(['int2', 'int4', 'int8', 'numeric', 'money', 'interval', 'bool'])

/** True for a sum of numbers that may be rounded: then the last digits depend on the order of the rows. */
export function roundsSums({ funcname, args }: Node, tables: readonly TableInfo[]): boolean {
  if (!SUMS.test(lastPart(funcname) ?? '')) return false
  const columns = tables.flatMap((table) => table.columns)
  const isExact = (name: string): boolean => {
    const found = columns.filter((column) => column.name === name)
    return found.length > 0 && found.every(({ type }) => EXACT_TYPES.has(type))
  }
  const names = columnRefsIn(args).map((parts) => parts.at(-1) ?? '')
  return !names.every(isExact) || someNode(args, (kind) => kind === 'TypeCast' || kind === 'FuncCall')
}
