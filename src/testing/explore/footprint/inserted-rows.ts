import { childOf, listOf, type Node, valueRowsOf } from '../statements/parse-tree.js'
import type { Column } from '../statements/schema-info.js'
import { joinKey, keyIn, type Values } from './key-values.js'

/** Reads the rows of an INSERT, as far as its text shows them. */
export class InsertedRows {
  /** The rows of VALUES; undefined for another query. DEFAULT VALUES is one empty row. */
  readonly rows: readonly (readonly unknown[])[] | undefined
  readonly #source: unknown
  readonly #columns: readonly Column[]
  readonly #targets: readonly string[]
  readonly #isOverridden: boolean
  readonly #hasColumnList: boolean
  readonly #values: Values

  constructor(insert: Node, columns: readonly Column[], values: Values) {
    const listed = listOf(insert.cols).map((column) => `${childOf(column, 'ResTarget')?.name}`)
    this.#source = insert.selectStmt
    this.rows = insert.selectStmt === undefined ? [[]] : valueRowsOf(insert.selectStmt)
    this.#columns = columns
    this.#hasColumnList = listed.length > 0
    this.#targets = this.#hasColumnList ? listed : columns.map(({ name }) => name)
    this.#isOverridden = insert.override === 'OVERRIDING_USER_VALUE'
    this.#values = values
  }

  /** Sequences that the defaults of left-out columns draw from. */
  get drawnSequences(): ReadonlySet<string> {
    return new Set(
      this.#columns.filter((column) => this.mayLeaveOut(column)).flatMap(({ sequences }) => sequences),
    )
  }

  /** True if some row may get the default of the column. */
  mayLeaveOut({ name }: Column): boolean {
    if (this.#isOverridden) return true
    // A query may have fewer columns than the table.
    if (!this.rows) return !this.#hasColumnList || !this.#targets.includes(name)
    return this.rows.some((row) => isLeftOut(row[this.#targets.indexOf(name)]))
  }

  /** True if some inserted value passes the test. The test also gets the value's column, where that is known. */
  someValue(test: (value: unknown, column: Column | undefined) => boolean): boolean {
    if (!this.rows) return test(this.#source, undefined)
    const columnAt = (i: number) => this.#columns.find(({ name }) => name === this.#targets[i])
    return this.rows.some((row) => row.some((value, i) => test(value, columnAt(i))))
  }

  /** The inserted values of these columns. Undefined: the values can be any. Empty: no other row can have them. */
  keysOf(wanted: readonly string[] | null): ReadonlySet<string> | undefined {
    if (!wanted || !this.rows || this.#isOverridden) return undefined
    const keys = new Set<string>()
    for (const row of this.rows) {
      const parts: string[] = []
      let isFresh = false
      for (const name of wanted) {
        const column = this.#columns.find((one) => one.name === name)
        const value = row[this.#targets.indexOf(name)]
        if (isLeftOut(value) && column?.default !== 'some') isFresh = true
        else {
          const key = isLeftOut(value) ? undefined : keyIn(column, value, this.#values)
          if (key === undefined) return undefined
          parts.push(key)
        }
      }
      if (!isFresh) keys.add(joinKey(parts))
    }
    return keys
  }
}

const isLeftOut = (value: unknown): boolean =>
  value === undefined || childOf(value, 'SetToDefault') !== undefined
