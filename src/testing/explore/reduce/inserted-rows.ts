import type { Column } from '../statements/table-facts.js'
import { joinKey, keyIn, type Values } from './key-values.js'
import { inside, list, type Node } from './node.js'

/** The rows of an INSERT, as far as its text tells. */
export class InsertedRows {
  /** Of VALUES; undefined for a query. DEFAULT VALUES is one row with nothing in it. */
  readonly rows: readonly (readonly unknown[])[] | undefined
  readonly #source: unknown
  readonly #all: readonly Column[]
  readonly #named: readonly string[]
  readonly #isOverridden: boolean
  readonly #hasList: boolean
  readonly #values: Values

  constructor(insert: Node, columns: readonly Column[], values: Values) {
    const given = list(insert.cols).map((column) => `${inside(column, 'ResTarget')?.name}`)
    this.#source = insert.selectStmt
    this.rows = rowsOf(insert.selectStmt)
    this.#all = columns
    this.#hasList = given.length > 0
    this.#named = this.#hasList ? given : columns.map(({ name }) => name)
    this.#isOverridden = insert.override === 'OVERRIDING_USER_VALUE'
    this.#values = values
  }

  /** Sequences that defaults may draw from. */
  get draws(): ReadonlySet<string> {
    return new Set(
      this.#all.filter((column) => this.mayLeaveOut(column)).flatMap(({ sequences }) => sequences),
    )
  }

  /** Some row may get the column's default. */
  mayLeaveOut({ name }: Column): boolean {
    if (this.#isOverridden) return true
    // A query may have fewer columns than the table.
    if (!this.rows) return !this.#hasList || !this.#named.includes(name)
    return this.rows.some((row) => isLeftOut(row[this.#named.indexOf(name)]))
  }

  /** Some value, with the column that it is for, where that is known. */
  holds(test: (value: unknown, column: Column | undefined) => boolean): boolean {
    if (!this.rows) return test(this.#source, undefined)
    const columnAt = (i: number) => this.#all.find(({ name }) => name === this.#named[i])
    return this.rows.some((row) => row.some((value, i) => test(value, columnAt(i))))
  }

  /** The values of these columns. Undefined: any. Empty: none that another row could have. */
  keysOf(wanted: readonly string[] | null): ReadonlySet<string> | undefined {
    if (!wanted || !this.rows || this.#isOverridden) return undefined
    const keys = new Set<string>()
    for (const row of this.rows) {
      const parts: string[] = []
      let isFresh = false
      for (const name of wanted) {
        const column = this.#all.find((one) => one.name === name)
        const value = row[this.#named.indexOf(name)]
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

function rowsOf(source: unknown): readonly (readonly unknown[])[] | undefined {
  if (source === undefined) return [[]]
  const rows = list(inside(source, 'SelectStmt')?.valuesLists)
  return rows.length > 0 ? rows.map((row) => list(inside(row, 'List')?.items)) : undefined
}

const isLeftOut = (value: unknown): boolean =>
  value === undefined || inside(value, 'SetToDefault') !== undefined
