import type { Column, Table } from './catalog/table.js'
import { reservedByKey } from './row-id.js'
import { type ReservedColumn, type RowArgs, type RowPatch, writable } from './sql-values.js'

/** The assignments of one write: those that options ask for, and then the caller's own, which cannot set the same columns. */
export class OptionAssignments {
  readonly #table: Table
  readonly #sets: string[] = []
  readonly #reserved: ReservedColumn[]

  constructor(table: Table) {
    this.#table = table
    this.#reserved = [...reservedByKey(table, [])]
  }

  /** Assigns an SQL expression to the column of an option. Throws if another option sets the same column. */
  add(option: string, column: Column, expression: string): void {
    writable(option, this.#table, column.name, this.#reserved)
    this.#reserved.push({ name: column.name, why: `\`${option}\` sets it` })
    this.#sets.push(`${column.quoted} = ${expression}`)
  }

  /** Returns all assignments, with those of the caller at the end. */
  with(field: string, patch: RowPatch, args: RowArgs): string[] {
    return [...this.#sets, ...args.assign(field, this.#table, patch, this.#reserved)]
  }
}
