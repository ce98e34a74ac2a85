import type { PendingStep } from '../schedule/pending-step.js'
import type { Column } from '../statements/table-facts.js'
import { inside, list, type Node, names } from './node.js'

/** Parameters of a statement. */
export type Values = PendingStep['values']

/** Casts that leave a key what it is. */
const PLAIN_CASTS = new Set(['int2', 'int4', 'int8', 'text', 'varchar', 'uuid'])

/** A constant or parameter as text; undefined: something else. */
export function constantOf(node: unknown, values: Values): string | null | undefined {
  const cast = inside(node, 'TypeCast')
  if (cast) {
    const type = inside(cast, 'typeName')
    const isPlain = type && type.arrayBounds === undefined && type.typmods === undefined
    // A cast of a cast may have changed the text.
    if (!isPlain || !PLAIN_CASTS.has(names(type.names).at(-1) ?? '') || inside(cast.arg, 'TypeCast'))
      return undefined
    return constantOf(cast.arg, values)
  }
  const parameter = inside(node, 'ParamRef')
  if (parameter) return textOf(values?.[Number(parameter.number) - 1])
  const constant = inside(node, 'A_Const')
  if (!constant) return undefined
  if (constant.isnull) return null
  if (constant.ival !== undefined) return `${inside(constant, 'ival')?.ival ?? 0}` // zeros are left out
  if (constant.fval !== undefined) return `${inside(constant, 'fval')?.fval}`
  if (constant.sval !== undefined) return `${inside(constant, 'sval')?.sval ?? ''}`
  return undefined
}

/** Parameters in binary are known by their size alone. */
const textOf = (value: string | null | undefined): string | null | undefined =>
  value && /^<\d+ bytes?>$/.test(value) ? undefined : value

/** So that texts are equal where PostgreSQL finds the values equal; undefined: cannot be told. */
export function keyOf(text: string | null | undefined, column: Column | undefined): string | undefined {
  if (text === undefined || text === null || !column?.isPlain) return undefined
  if (text.length > (column.most ?? text.length)) return undefined
  switch (column.type) {
    case 'text':
    case 'varchar':
      return text
    case 'uuid':
      return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text) ? text.toLowerCase() : undefined
    default:
      return /^[-+]?\d{1,18}$/.test(text) ? BigInt(text.replace('+', '')).toString() : undefined
  }
}

/** Types that take over each other's text. */
const familyOf = (type: string): string => (/^int\d$/.test(type) ? 'int' : type === 'varchar' ? 'text' : type)

/** What a constant is in a column, which may have taken it for something else: `'007'::int` is '7' there, and `1e1` is '10'. */
export function keyIn(column: Column | undefined, node: unknown, values: Values): string | undefined {
  const cast = inside(node, 'TypeCast')
  const type = names(inside(cast, 'typeName')?.names).at(-1)
  const isOther = type !== undefined && familyOf(type) !== familyOf(column?.type ?? '')
  const isNumber = inside(cast ? cast.arg : node, 'A_Const')?.fval !== undefined
  if (isOther || (isNumber && column?.type !== 'int8')) return undefined
  return keyOf(constantOf(node, values), column)
}

/** More are taken for any. */
const MOST_KEYS = 1_000

/** Which rows a condition can be true for, by the columns of a key: all combinations; undefined: any. */
export function keysIn(
  where: unknown,
  columns: readonly Column[],
  isColumn: (field: unknown, name: string) => boolean,
  values: Values,
): ReadonlySet<string> | undefined {
  if (columns.length === 0) return undefined
  const parts = conjuncts(where)
  let keys: string[][] = [[]]
  for (const column of columns) {
    const found = parts.map((part) => valuesFor(part, column, isColumn, values)).find((one) => one)
    if (!found) return undefined
    if (keys.length * found.length > MOST_KEYS) return undefined
    keys = keys.flatMap((key) => found.map((value) => [...key, value]))
  }
  return new Set(keys.map(joinKey))
}

export const joinKey = (parts: readonly string[]): string => JSON.stringify(parts)

/** What must all be true. */
export function conjuncts(where: unknown): readonly unknown[] {
  const bool = inside(where, 'BoolExpr')
  return bool?.boolop === 'AND_EXPR' ? list(bool.args).flatMap(conjuncts) : [where]
}

/** `column = value`, `value = column`, `column in (…)`, `column = any ('{…}')`. */
function valuesFor(
  part: unknown,
  column: Column,
  isColumn: (field: unknown, name: string) => boolean,
  values: Values,
): readonly string[] | undefined {
  const expression = inside(part, 'A_Expr')
  if (!expression || !isEquals(expression)) return undefined
  const { kind, lexpr, rexpr } = expression
  const isLeft = isColumn(lexpr, column.name)
  if (!isLeft && !(kind === 'AEXPR_OP' && isColumn(rexpr, column.name))) return undefined
  const keys = ((): readonly (string | undefined)[] => {
    if (kind === 'AEXPR_OP') return [keyIn(column, isLeft ? rexpr : lexpr, values)]
    if (kind === 'AEXPR_IN')
      return list(inside(rexpr, 'List')?.items).map((item) => keyIn(column, item, values))
    if (kind !== 'AEXPR_OP_ANY') return [undefined]
    return elementsOf(constantOf(withoutCast(rexpr), values)).map((text) => keyOf(text, column))
  })()
  return keys.includes(undefined) ? undefined : (keys as string[])
}

function isEquals({ name }: Node): boolean {
  const parts = names(name)
  return parts.at(-1) === '=' && (parts.length === 1 || parts[0] === 'pg_catalog')
}

/** `$1::int[]`; but `::varchar(1)[]` makes other texts. */
function withoutCast(node: unknown): unknown {
  const cast = inside(node, 'TypeCast')
  return cast && inside(cast, 'typeName')?.typmods === undefined ? cast.arg : node
}

/** Of an array's text, where it is simple. */
function elementsOf(text: string | null | undefined): readonly (string | undefined)[] {
  if (!/^\{[\w-]+(?:,[\w-]+)*\}$/.test(text ?? '')) return [undefined]
  return (text ?? '').slice(1, -1).split(',')
}
