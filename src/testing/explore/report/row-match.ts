import { keyIn, keyOf, type Values } from '../footprint/key-values.js'
import { childOf, columnOf, listOf, nameParts } from '../statements/parse-tree.js'
import type { Column } from '../statements/schema-info.js'

/** A row of an INSERT, by column, as far as its values are constants or parameters. */
export type KnownRow = ReadonlyMap<string, string | null>

/** Tells whether a condition holds for a row; undefined if only the server can tell. */
export function matches(
  where: unknown,
  row: KnownRow,
  columns: readonly Column[],
  values: Values,
): boolean | undefined {
  const bool = childOf(where, 'BoolExpr')
  if (bool) {
    const parts = listOf(bool.args).map((part) => matches(part, row, columns, values))
    if (bool.boolop === 'NOT_EXPR') return parts[0] === undefined ? undefined : !parts[0]
    const decides = bool.boolop === 'OR_EXPR'
    if (parts.includes(decides)) return decides
    return parts.includes(undefined) ? undefined : !decides
  }
  const test = childOf(where, 'NullTest')
  if (test) {
    const value = row.get(columnOf(test.arg) ?? '')
    return value === undefined ? undefined : (value === null) === (test.nulltesttype === 'IS_NULL')
  }
  const expression = childOf(where, 'A_Expr')
  if (expression?.kind !== 'AEXPR_OP') return undefined
  const isLeft = columnOf(expression.lexpr) !== undefined
  const name = columnOf(isLeft ? expression.lexpr : expression.rexpr)
  const column = columns.find((one) => one.name === name)
  const own = keyOf(row.get(name ?? ''), column)
  const other = keyIn(column, isLeft ? expression.rexpr : expression.lexpr, values)
  const operator = nameParts(expression.name)
  if (own === undefined || other === undefined || operator.length !== 1) return undefined
  return isLeft
    ? compare(own, `${operator[0]}`, other, column)
    : compare(other, `${operator[0]}`, own, column)
}

function compare(a: string, operator: string, b: string, column: Column | undefined): boolean | undefined {
  if (operator === '=') return a === b
  if (operator === '<>') return a !== b
  // The order of texts depends on their collation.
  if (!column?.type.startsWith('int')) return undefined
  switch (operator) {
    case '<':
      return BigInt(a) < BigInt(b)
    case '<=':
      return BigInt(a) <= BigInt(b)
    case '>':
      return BigInt(a) > BigInt(b)
    case '>=':
      return BigInt(a) >= BigInt(b)
  }
  return undefined
}
