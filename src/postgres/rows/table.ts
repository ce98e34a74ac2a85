import { InvalidInputError } from '../../errors.js'
import { quoteIdentifier } from '../identifier.js'
import { nameGiven, showGiven } from '../name-given.js'
import { offerNames } from '../nearest-name.js'
import type { TableName } from './table-name.js'

/** A type, as far as values are checked before they are sent. */
export interface ColumnType {
  /** With its schema, quoted: to be cast to. */
  readonly sql: string
  /** The built-in type behind it and its domains: `int4`, `jsonb`; absent for others. */
  readonly base?: string | undefined
  /** The labels of an enum. */
  readonly labels?: readonly string[] | undefined
  /** Of an array. */
  readonly element?: ColumnType | undefined
  /** The most characters of `varchar(n)` and `char(n)`. */
  readonly maxLength?: number | undefined
  /** Of `numeric(precision, scale)`. */
  readonly precision?: number | undefined
  readonly scale?: number | undefined
  /** How many digits of a second `timestamptz(n)` keeps. */
  readonly digits?: number | undefined
}

export interface Column extends ColumnType {
  readonly name: string
  readonly quoted: string
  /**
   * The type behind its domains, without a modifier: what a value is cast to. To cast to more would cut a value off, or check it where it is only
   * compared; what the column demands of a value that is written, the server sees to when it assigns it.
   */
  readonly cast: string
  /** The same with its modifier: what a value that was written has become. */
  readonly stored: string
  /**
   * What stands between the column and a value: the operator that its own type is compared with, so that no operator of the caller's search path stands in
   * for it. Before it the column of a domain is cast to the type behind: not every operator sees through a domain.
   */
  readonly equals: string
  /** The same for `>`, in the order that the type is sorted by. */
  readonly after: string
  readonly isComposite: boolean
  readonly isNullable: boolean
  /** The database makes its values, and takes none. */
  readonly isGenerated: boolean
}

export interface TableParts {
  /** Which table it is, with which columns and keys: if that changes, it must be read again. */
  readonly mark: string
  readonly columns: readonly Column[]
  /** The columns of the primary key, in its order. */
  readonly key: readonly string[]
  /** Why the primary key does not say which row it is. */
  readonly keyProblem?: string | undefined
  /** The columns of each unique index without condition, expression, deferral or a comparison of its own; the primary key among them. */
  readonly uniques: readonly (readonly string[])[]
}

/** A table of the caller's own. */
export class Table {
  readonly mark: string
  readonly columns: ReadonlyMap<string, Column>
  readonly uniques: readonly (readonly string[])[]
  readonly #primary: readonly string[]
  readonly #keyProblem: string | undefined

  constructor(
    readonly name: TableName,
    { mark, columns, key, keyProblem, uniques }: TableParts,
  ) {
    this.mark = mark
    this.columns = new Map(columns.map((column) => [column.name, column]))
    this.uniques = uniques
    this.#primary = key
    this.#keyProblem = keyProblem
  }

  /** As it stands in SQL. */
  get quoted(): string {
    return this.name.quoted
  }

  /**
   * All columns, as they stand in a list of a statement; `row` is where they come from. Domains are left behind: where there is no row there is no value of one that is
   * never null.
   */
  list(row = ''): string {
    return [...this.columns.values()]
      .map(({ quoted, sql, cast }) => `${row}${quoted}${sql === cast ? '' : `::${cast}`}`)
      .join(', ')
  }

  /** A name of ours that no column has. */
  freeName(wanted: string): string {
    return this.columns.has(wanted) ? this.freeName(`${wanted}_`) : wanted
  }

  /** A name for a part of a statement: one that has the table's own name would stand for it. */
  partName(wanted: string): string {
    return quoteIdentifier(this.name.name === wanted ? `${wanted}_` : wanted)
  }

  /** A column as one of this table, where a name alone could be that of a result; the caller's own conditions name the table so, too. */
  own(column: Column): string {
    return `${quoteIdentifier(this.name.name)}.${column.quoted}`
  }

  /** The columns of the primary key, none if it has none; refused if one key may be that of several rows. */
  get key(): readonly Column[] {
    if (this.#keyProblem !== undefined)
      throw new InvalidInputError(
        'table',
        `names ${this.name.given}, whose primary key (${this.#primary.join(', ')}) ${this.#keyProblem}`,
      )
    return this.primary
  }

  /** The same whether or not it says which row it is: to sort by, and to be left alone. */
  get primary(): readonly Column[] {
    return this.#primary.map((name) => this.column('table', name))
  }

  /** The primary key is among them. */
  get #keys(): readonly (readonly string[])[] {
    const primary = this.#keyProblem === undefined ? [this.#primary] : []
    return [...primary, ...this.uniques].filter(({ length }) => length > 0)
  }

  column(field: string, name: unknown): Column {
    const column = typeof name === 'string' ? this.columns.get(name) : undefined
    if (column) return column
    const offer = offerNames(typeof name === 'string' ? name.slice(0, 100) : '', [...this.columns.keys()])
    throw new InvalidInputError(
      field,
      `names ${typeof name === 'string' ? `the column ${showGiven(name)}` : nameGiven(name)}, which table ${this.name.given} does not have. ${offer}`,
    )
  }

  /** The unique index, or primary key, that has just these columns; in its own order. */
  findUnique(names: readonly string[]): readonly string[] | undefined {
    return this.#keys.find(
      (unique) => unique.length === names.length && unique.every((name) => names.includes(name)),
    )
  }

  /** The unique indexes in words. */
  describeUniques(): string {
    const lists = new Set(this.#keys.map((list) => `(${list.join(', ')})`))
    const found = `Unique indexes: ${lists.size === 0 ? 'none' : [...lists].join(', ')}`
    return this.#keyProblem === undefined
      ? found
      : `${found}. The primary key (${this.#primary.join(', ')}) ${this.#keyProblem}`
  }
}

/** What a whole number of this type may be. */
export const integerRanges: Readonly<Record<string, readonly [least: bigint, most: bigint]>> = {
  int2: [-(2n ** 15n), 2n ** 15n - 1n],
  int4: [-(2n ** 31n), 2n ** 31n - 1n],
  int8: [-(2n ** 63n), 2n ** 63n - 1n],
  oid: [0n, 2n ** 32n - 1n],
}
