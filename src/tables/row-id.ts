import { isPlain } from '../errors/is-plain.js'
import { InvalidInputError } from '../errors.js'
import type { Column, Table } from './catalog/table.js'
import { type ReservedColumn, ROW, type RowArgs } from './sql-values.js'

/**
 * Identifies a row: the value of a primary key of one column, or an object of columns and values. The object names all columns of the primary key, or of
 * another unique index.
 */
export type RowId =
  | string
  | number
  | bigint
  | Date
  | Uint8Array
  | Readonly<Record<string, string | number | bigint | boolean | Date | Uint8Array>>

/** A column of a key, and its value. */
export interface KeyPart {
  readonly column: Column
  readonly field: string
  readonly value: unknown
}

/** Returns the columns that identify the row, in the order of their index, so that all callers lock in the same order. */
export function readId(field: string, table: Table, id: unknown): readonly KeyPart[] {
  const parts = isPlain(id) ? readParts(field, table, id) : readScalar(field, table, id)
  for (const part of parts)
    if (part.value === null || part.value === undefined)
      throw new InvalidInputError(part.field, `must not be ${part.value}: it says which row`)
  return parts
}

function readScalar(field: string, table: Table, value: unknown): readonly KeyPart[] {
  const [column, ...more] = table.key
  if (column && more.length === 0) return [{ column, field, value }]
  throw new InvalidInputError(
    field,
    `must name the columns of a unique index, as in { tenant: 1, id: 2 }: ${column ? `the primary key of ${table.name.input} has ${table.key.length} columns` : `table ${table.name.input} has no primary key`}. ${table.describeUniques()}`,
  )
}

function readParts(field: string, table: Table, id: Record<string, unknown>): readonly KeyPart[] {
  const names = Object.keys(id)
  for (const name of names) table.column(`${field}.${name}`, name)
  const unique = table.findUnique(names)
  if (!unique)
    throw new InvalidInputError(
      field,
      `must name all columns of the primary key or of another unique index of ${table.name.input}, and no others. ${table.describeUniques()}`,
    )
  return unique.map((name) => ({
    column: table.column(field, name),
    field: `${field}.${name}`,
    value: id[name],
  }))
}

/** Returns the SQL condition that identifies the row. */
export function matchId(parts: readonly KeyPart[], args: RowArgs, row = ROW): string {
  return parts
    .map(
      ({ column, field, value }) =>
        `${row}.${column.quoted} ${column.equals} ${args.value(field, column, value)}`,
    )
    .join(' and ')
}

/** Reserves the columns that identify the row: the same write cannot change them. */
export const reservedByKey = (table: Table, parts: readonly KeyPart[]): readonly ReservedColumn[] =>
  [...new Set([...table.primary, ...parts.map(({ column }) => column)])].map(({ name }) => ({
    name,
    why: 'it identifies the row',
  }))
