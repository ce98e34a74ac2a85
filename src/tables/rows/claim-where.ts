import { isPlain } from '../../errors/is-plain.js'
import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { checkCharacters } from '../../postgres/key.js'
import { textArray } from '../../postgres/text-values.js'
import { writeDate } from '../catalog/column-value.js'
import type { Column, Table } from '../catalog/table.js'
import { checkPatch, type RowArgs } from '../sql-values.js'

/** Columns and the value that each must have. Null: the column must be null. An array: the column must have one of its values. */
export type ClaimWhereEqual = Readonly<Record<string, unknown>>

/**
 * A condition in SQL, with placeholders `$1`, `$2` and so on for `values`. The type of a placeholder follows from its value: `text`, `bigint` for a whole
 * number, `numeric` for another number, `boolean`, `timestamptz` for a Date, `text[]` for an array. Cast a placeholder if the column needs another type:
 * `$1::uuid`.
 */
export interface ClaimWhereSql {
  readonly sql: string
  readonly values?: readonly unknown[] | undefined
}

export type ClaimWhere = ClaimWhereEqual | ClaimWhereSql

/** Matches a string, a quoted identifier, a comment, a dollar-quoted string, or a placeholder. */
const TOKEN =
  /[eE]'(?:[^'\\]|\\[\s\S]|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|\/\*[\s\S]*?\*\/|\$([A-Za-z_]\w*)?\$[\s\S]*?\$\1\$|(?<![\w$])\$(\d+)/g

export function readWhere(table: Table, where: unknown, args: RowArgs): string[] {
  if (where === undefined) return []
  return isPlain(where) && typeof where.sql === 'string' && !table.columns.has('sql')
    ? [`(${writeSql(where.sql, where.values ?? [], Object.keys(where), args)}\n)`]
    : Object.entries(checkPatch('where', where)).map(([name, value]) =>
        matchColumn(table.column(`where.${name}`, name), value, args),
      )
}

function matchColumn(column: Column, value: unknown, args: RowArgs): string {
  const field = `where.${column.name}`
  if (value === null) return `${column.quoted} is null`
  if (!Array.isArray(value)) return `${column.quoted} ${column.equals} ${args.value(field, column, value)}`
  if (column.element) throw new InvalidInputError(field, 'is a column of arrays; say it as { sql, values }')
  if (value.some((item) => item === null))
    throw new InvalidInputError(field, 'must not have null among several; say it as { sql, values }')
  return `${column.quoted} ${column.equals} any (${args.list(field, column, value)})`
}

/** Replaces each placeholder by a reference into the array of all values, so that no value becomes part of the SQL text. */
function writeSql(sql: string, values: unknown, names: readonly string[], args: RowArgs): string {
  const unknown = names.find((name) => name !== 'sql' && name !== 'values')
  if (unknown !== undefined) throw new InvalidInputError(`where.${unknown}`, 'is no part of { sql, values }')
  if (!Array.isArray(values))
    throw new InvalidInputError('where.values', `must be an array, not ${nameGiven(values)}`)
  if (sql.trim() === '') throw new InvalidInputError('where.sql', 'must not be empty')
  checkCharacters('where.sql', sql)
  const used = new Set<number>()
  const places = new Map<number, string>()
  const text = sql.replace(TOKEN, (token, _tag, digits) => {
    if (digits === undefined) return token
    const place = Number(digits)
    if (place < 1 || place > values.length)
      throw new InvalidInputError('where.sql', `has $${digits}, and there are ${values.length} values`)
    used.add(place)
    const known =
      places.get(place) ?? `(${placeValue(`where.values[${place - 1}]`, values[place - 1], args)})`
    places.set(place, known)
    return known
  })
  const unused = values.findIndex((_, n) => !used.has(n + 1))
  if (unused >= 0)
    throw new InvalidInputError(`where.values[${unused}]`, `is not used: there is no $${unused + 1}`)
  return text
}

function placeValue(field: string, value: unknown, args: RowArgs): string {
  if (value === null) return args.place(null, 'pg_catalog.text')
  if (typeof value === 'boolean') return args.place(`${value}`, 'pg_catalog.bool')
  if (value instanceof Date && !Number.isNaN(value.getTime()))
    return args.place(writeDate(value), 'pg_catalog.timestamptz')
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) {
    const fits = BigInt.asIntN(64, BigInt(value as bigint | number)) === BigInt(value as bigint | number)
    return args.place(`${value}`, fits ? 'pg_catalog.int8' : 'pg_catalog.numeric')
  }
  if (typeof value === 'number' && Number.isFinite(value) && !Number.isInteger(value))
    return args.place(`${value}`, 'pg_catalog.numeric')
  if (Array.isArray(value))
    return args.place(
      textArray(value.map((item, n) => readText(`${field}[${n}]`, item))),
      'pg_catalog.text[]',
    )
  return args.place(readText(field, value), 'pg_catalog.text')
}

function readText(field: string, value: unknown): string | null {
  if (value === null) return null
  if (!['string', 'number', 'bigint', 'boolean'].includes(typeof value) || Number.isNaN(value))
    throw new InvalidInputError(
      field,
      `must be a text, a number, a boolean, a Date or an array of these, not ${nameGiven(value)}`,
    )
  checkCharacters(field, `${value}`)
  return `${value}`
}
