import { isPlain } from '../errors/is-plain.js'
import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import { type TextValue, textArray } from '../postgres/text-values.js'
import { toArrayText, toColumnText } from './catalog/column-value.js'
import type { Column, ColumnType, Table } from './catalog/table.js'

/** Columns and the values to write. */
export type RowPatch = Readonly<Record<string, unknown>>

/** The alias of the row in our statements. */
export const ROW = '"dibs_t"'

/** The values of a statement. All values are sent as one array of texts, which is `$1` in the statement. */
export class RowArgs {
  readonly #texts: string[] = []

  get text(): string {
    return textArray(this.#texts)
  }

  /**
   * Adds a text to the array, and returns a reference to it, cast to a type. Null is not added: with `array_nulls` off, the
   * server would read it as a word.
   */
  place(text: TextValue, sql: string): string {
    if (text === null) return `null::${sql}`
    this.#texts.push(text)
    return `($1)[${this.#texts.length}]::${sql}`
  }

  value(field: string, column: Column, value: unknown): string {
    if (column.element && hasNull(value)) return this.#arrayWithNulls(field, column, column.element, value)
    return this.place(toColumnText(field, column, value), column.cast)
  }

  /** An array that contains nulls, which its text cannot express with `array_nulls` off. A word that occurs in no item stands for each null. */
  #arrayWithNulls(field: string, column: Column, element: ColumnType, value: unknown): string {
    const plain = toArrayText(field, element, value)
    let word = 'dibs'
    while (plain.includes(word)) word += '_'
    const text = this.place(toArrayText(field, element, value, word), 'pg_catalog.text[]')
    return `pg_catalog.array_replace(${text}, '${word}'::pg_catalog.text, null)::${column.cast}`
  }

  /** A value as the column rounds it when it is written. */
  stored(field: string, column: Column, value: unknown): string {
    return this.place(toColumnText(field, column, value), column.stored)
  }

  /** Several values as one array. */
  list(field: string, column: Column, values: readonly unknown[]): string {
    return this.place(toArrayText(field, column, values), `${column.cast}[]`)
  }

  /** Several values as an array of texts. Each must still be cast. */
  texts(field: string, column: Column, values: readonly unknown[]): string {
    const texts = values.map((value, n) => toColumnText(`${field}[${n}]`, column, value))
    return this.place(textArray(texts), 'pg_catalog.text[]')
  }

  /** Returns assignments: `"a" = …`, `"b" = …`. */
  assign(field: string, table: Table, patch: RowPatch, reserved: readonly ReservedColumn[]): string[] {
    return Object.entries(checkPatch(field, patch)).map(([name, value]) => {
      const at = `${field}.${name}`
      const column = writable(at, table, name, reserved)
      return `${column.quoted} = ${this.value(at, column, value)}`
    })
  }
}

/** A column that the caller may not set, and why. */
export interface ReservedColumn {
  readonly name: string
  readonly why: string
}

export function checkPatch(field: string, patch: unknown): RowPatch {
  if (!isPlain(patch))
    throw new InvalidInputError(field, `must be an object of columns and values, not ${nameGiven(patch)}`)
  return patch
}

export function writable(
  field: string,
  table: Table,
  name: string,
  reserved: readonly ReservedColumn[],
): Column {
  const column = table.column(field, name)
  const found = reserved.find((one) => one.name === name)
  if (found) throw new InvalidInputError(field, `must not be given: ${found.why}`)
  if (column.isGenerated) throw new InvalidInputError(field, 'must not be given: the database makes it')
  return column
}

function hasNull(value: unknown): boolean {
  return Array.isArray(value) && value.some((item) => item === null || hasNull(item))
}
