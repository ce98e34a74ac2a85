import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../name-given.js'
import { type TextValue, textArray } from '../text-values.js'
import { toArrayText, toColumnText } from './column-value.js'
import type { Column, ColumnType, Table } from './table.js'

/** Columns and what they are set to. */
export type RowPatch = Readonly<Record<string, unknown>>

/** The name of the row in our statements. */
export const ROW = '"dibs_t"'

/** The values of a statement: they cross the wire as one array of texts, which is `$1` in it. */
export class RowArgs {
  readonly #texts: TextValue[] = []

  get text(): string {
    return textArray(this.#texts)
  }

  /** A text, and the place where it stands, cast to a type. */
  place(text: TextValue, sql: string): string {
    this.#texts.push(text)
    return `($1)[${this.#texts.length}]::${sql}`
  }

  value(field: string, column: Column, value: unknown): string {
    return this.place(toColumnText(field, column, value), column.sql)
  }

  /** Several values as one array. */
  list(field: string, type: ColumnType, values: readonly unknown[]): string {
    return this.place(toArrayText(field, type, values), `${type.sql}[]`)
  }

  /** `"a" = …, "b" = …` */
  assign(field: string, table: Table, patch: RowPatch, taken: readonly Taken[]): string[] {
    return Object.entries(checkPatch(field, patch)).map(([name, value]) => {
      const at = `${field}.${name}`
      const column = writable(at, table, name, taken)
      return `${column.quoted} = ${this.value(at, column, value)}`
    })
  }
}

/** A column that the caller may not set, and why. */
export interface Taken {
  readonly name: string
  readonly why: string
}

export function checkPatch(field: string, patch: unknown): RowPatch {
  if (!isPlain(patch))
    throw new InvalidInputError(field, `must be an object of columns and values, not ${nameGiven(patch)}`)
  return patch
}

export function writable(field: string, table: Table, name: string, taken: readonly Taken[]): Column {
  const column = table.column(field, name)
  const found = taken.find((one) => one.name === name)
  if (found) throw new InvalidInputError(field, `must not be given: ${found.why}`)
  if (column.isGenerated) throw new InvalidInputError(field, 'must not be given: the database makes it')
  return column
}

export function isPlain(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false
  const prototype = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype
}
