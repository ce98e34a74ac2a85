import type { PendingStep } from '../schedule/pending-step.js'
import { childOf, lastPart, listOf, type Node, nameParts } from '../statements/parse-tree.js'
import type { Column } from '../statements/schema-info.js'

/** The parameters of a statement; undefined if they are not known. */
export type Values = PendingStep['values']

/** Types to which a cast does not change a key. */
const PLAIN_CASTS = new Set(['int2', 'int4', 'int8', 'text', 'varchar', 'uuid'])

/** A constant or a parameter as text; null for NULL; undefined for any other expression. */
export function constantOf(node: unknown, values: Values): string | null | undefined {
  const cast = childOf(node, 'TypeCast')
  if (cast) {
    const type = childOf(cast, 'typeName')
    const isPlain = type && type.arrayBounds === undefined && type.typmods === undefined
    // A cast of a cast may have changed the text.
    if (!isPlain || !PLAIN_CASTS.has(lastPart(type.names) ?? '') || childOf(cast.arg, 'TypeCast'))
      return undefined
    return constantOf(cast.arg, values)
  }
  const parameter = childOf(node, 'ParamRef')
  if (parameter) return textOf(values?.[Number(parameter.number) - 1])
  const constant = childOf(node, 'A_Const')
  if (!constant) return undefined
  if (constant.isnull) return null
  if (constant.ival !== undefined) return `${childOf(constant, 'ival')?.ival ?? 0}` // libpg-query leaves zeros out
  if (constant.fval !== undefined) return `${childOf(constant, 'fval')?.fval}`
  if (constant.sval !== undefined) return `${childOf(constant, 'sval')?.sval ?? ''}`
  return undefined
}

/** The parameter as text; undefined for a parameter in binary form, of which only the size is known. */
const textOf = (value: string | null | undefined): string | null | undefined =>
  value && /^<\d+ bytes?>$/.test(value) ? undefined : value

/** A string that is equal exactly if PostgreSQL finds the values equal; undefined if this column has no such string. */
export function keyOf(text: string | null | undefined, column: Column | undefined): string | undefined {
  if (text === undefined || text === null || !column?.hasTextEquality) return undefined
  if (text.length > (column.maxLength ?? text.length)) return undefined
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

/** The family of a type. All types of a family write a value as the same text. */
const familyOf = (type: string): string => (/^int\d$/.test(type) ? 'int' : type === 'varchar' ? 'text' : type)

/** The key of a constant in a column. The column may convert the constant: `'007'::int` becomes '7', and `1e1` becomes '10'. */
export function keyIn(column: Column | undefined, node: unknown, values: Values): string | undefined {
  const cast = childOf(node, 'TypeCast')
  const type = lastPart(childOf(cast, 'typeName')?.names)
  const isOther = type !== undefined && familyOf(type) !== familyOf(column?.type ?? '')
  const isNumber = childOf(cast ? cast.arg : node, 'A_Const')?.fval !== undefined
  if (isOther || (isNumber && column?.type !== 'int8')) return undefined
  return keyOf(constantOf(node, values), column)
}

/** A condition that allows more keys counts as one that allows any key. */
const MAX_KEYS = 1_000

/** The keys for which a condition can be true: all combinations of the values of its columns. Undefined if they can be any. */
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
    if (keys.length * found.length > MAX_KEYS) return undefined
    keys = keys.flatMap((key) => found.map((value) => [...key, value]))
  }
  return new Set(keys.map(joinKey))
}

export const joinKey = (parts: readonly string[]): string => JSON.stringify(parts)

/** The conditions that AND joins. */
export function conjuncts(where: unknown): readonly unknown[] {
  const bool = childOf(where, 'BoolExpr')
  return bool?.boolop === 'AND_EXPR' ? listOf(bool.args).flatMap(conjuncts) : [where]
}

/** The values that a condition allows for a column: `column = value`, `value = column`, `column in (…)`, `column = any ('{…}')`. */
function valuesFor(
  part: unknown,
  column: Column,
  isColumn: (field: unknown, name: string) => boolean,
  values: Values,
): readonly string[] | undefined {
  const expression = childOf(part, 'A_Expr')
  if (!expression || !isEquals(expression)) return undefined
  const { kind, lexpr, rexpr } = expression
  const isLeft = isColumn(lexpr, column.name)
  if (!isLeft && !(kind === 'AEXPR_OP' && isColumn(rexpr, column.name))) return undefined
  const keys = ((): readonly (string | undefined)[] => {
    if (kind === 'AEXPR_OP') return [keyIn(column, isLeft ? rexpr : lexpr, values)]
    if (kind === 'AEXPR_IN')
      return listOf(childOf(rexpr, 'List')?.items).map((item) => keyIn(column, item, values))
    if (kind !== 'AEXPR_OP_ANY') return [undefined]
    return elementsOf(constantOf(withoutCast(rexpr), values)).map((text) => keyOf(text, column))
  })()
  return keys.includes(undefined) ? undefined : (keys as string[])
}

function isEquals({ name }: Node): boolean {
  const parts = nameParts(name)
  return parts.at(-1) === '=' && (parts.length === 1 || parts[0] === 'pg_catalog')
}

/** Removes a cast such as `$1::int[]`. A cast with a length, `::varchar(1)[]`, stays, since it changes the texts. */
function withoutCast(node: unknown): unknown {
  const cast = childOf(node, 'TypeCast')
  return cast && childOf(cast, 'typeName')?.typmods === undefined ? cast.arg : node
}

/** The elements of an array's text, if none of them is quoted. */
function elementsOf(text: string | null | undefined): readonly (string | undefined)[] {
  if (!/^\{[\w-]+(?:,[\w-]+)*\}$/.test(text ?? '')) return [undefined]
  return (text ?? '').slice(1, -1).split(',')
}
