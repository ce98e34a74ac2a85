import { InvalidInputError } from '../../errors.js'
import { nameGiven, showGiven } from '../../options/name-given.js'
import { offerNames } from '../../options/nearest-name.js'
import { quoteIdentifier } from '../../postgres/identifier.js'
import type { TableName } from './table-name.js'

/** The properties of a type by which values are checked before they are sent. */
export interface ColumnType {
  /** The qualified and quoted name, for a cast. */
  readonly sql: string
  /** The built-in type under the type's domains: `int4`, `jsonb`. Missing for other types. */
  readonly base?: string | undefined
  /** The labels of an enum. */
  readonly labels?: readonly string[] | undefined
  /** The type of an array's elements. */
  readonly element?: ColumnType | undefined
  /** The most characters of `varchar(n)` and `char(n)`. */
  readonly maxLength?: number | undefined
  /** The precision of `numeric(precision, scale)`. */
  readonly precision?: number | undefined
  readonly scale?: number | undefined
  /** How many digits of a second `timestamptz(n)` keeps. */
  readonly digits?: number | undefined
}

export interface Column extends ColumnType {
  readonly name: string
  readonly quoted: string
  /**
   * The type under the column's domains, without a modifier, to which a value is cast. A cast with the modifier would truncate
   * the value. A cast to the domain would check a value that is only compared. The server checks a written value when it
   * assigns it.
   */
  readonly cast: string
  /** The type under the domains with its modifier. A cast to it gives the value as the column stores it. */
  readonly stored: string
  /**
   * The operator between the column and a value: that of the column's own type, so that no operator in the caller's search path
   * can replace it. A column of a domain is first cast to the type under the domain, because not every operator accepts a
   * domain.
   */
  readonly equals: string
  /** The operator for `>`, in the sort order of the type. */
  readonly after: string
  readonly isComposite: boolean
  readonly isNullable: boolean
  /** The database generates the values and accepts none. */
  readonly isGenerated: boolean
}

export interface TableParts {
  /** Identifies the table with its columns and keys. If the fingerprint changes, the table must be read again. */
  readonly fingerprint: string
  readonly columns: readonly Column[]
  /** The columns of the primary key, in the order of the key. */
  readonly key: readonly string[]
  /** Why the primary key does not identify one row. */
  readonly keyProblem?: string | undefined
  /**
   * The columns of each unique index, including the primary key. Excludes indexes with a condition, an expression, deferral, or
   * another comparison than the column's.
   */
  readonly uniques: readonly (readonly string[])[]
}

/** A table of the caller. */
export class Table {
  readonly fingerprint: string
  readonly columns: ReadonlyMap<string, Column>
  readonly uniques: readonly (readonly string[])[]
  readonly #primary: readonly string[]
  readonly #keyProblem: string | undefined

  constructor(
    readonly name: TableName,
    { fingerprint, columns, key, keyProblem, uniques }: TableParts,
  ) {
    this.fingerprint = fingerprint
    this.columns = new Map(columns.map((column) => [column.name, column]))
    this.uniques = uniques
    this.#primary = key
    this.#keyProblem = keyProblem
  }

  /** The name in SQL. */
  get quoted(): string {
    return this.name.quoted
  }

  /**
   * All columns as a list for SQL; `row` is their prefix. Domains are cast to the type under them: a missing row gives nulls,
   * which a domain may refuse.
   */
  list(row = ''): string {
    return [...this.columns.values()]
      .map(({ quoted, sql, cast }) => `${row}${quoted}${sql === cast ? '' : `::${cast}`}`)
      .join(', ')
  }

  /** A name for a column of our own that differs from all columns of the table. */
  unusedName(wanted: string): string {
    return this.columns.has(wanted) ? this.unusedName(`${wanted}_`) : wanted
  }

  /** An alias for a part of a statement that differs from the table's name, which it would hide. */
  alias(wanted: string): string {
    return quoteIdentifier(this.name.name === wanted ? `${wanted}_` : wanted)
  }

  /**
   * A qualified column, where the bare name could mean a column of the result. The caller's own conditions also qualify by the
   * table's name.
   */
  qualify(column: Column): string {
    return `${quoteIdentifier(this.name.name)}.${column.quoted}`
  }

  /** The columns of the primary key; empty if there is none. Throws if several rows may have the same key. */
  get key(): readonly Column[] {
    if (this.#keyProblem !== undefined)
      throw new InvalidInputError(
        'table',
        `names ${this.name.input}, whose primary key (${this.#primary.join(', ')}) ${this.#keyProblem}`,
      )
    return this.primary
  }

  /** The columns of the primary key even if it does not identify one row: to sort by, and to leave unchanged. */
  get primary(): readonly Column[] {
    return this.#primary.map((name) => this.column('table', name))
  }

  /** All unique keys, the primary key among them. */
  get #uniqueKeys(): readonly (readonly string[])[] {
    const primary = this.#keyProblem === undefined ? [this.#primary] : []
    return [...primary, ...this.uniques].filter(({ length }) => length > 0)
  }

  column(field: string, name: unknown): Column {
    const column = typeof name === 'string' ? this.columns.get(name) : undefined
    if (column) return column
    const offer = offerNames(typeof name === 'string' ? name.slice(0, 100) : '', [...this.columns.keys()])
    throw new InvalidInputError(
      field,
      `names ${typeof name === 'string' ? `the column ${showGiven(name)}` : nameGiven(name)}, which table ${this.name.input} does not have. ${offer}`,
    )
  }

  /** Returns the unique key with exactly these columns, in the order of its index. */
  findUnique(names: readonly string[]): readonly string[] | undefined {
    return this.#uniqueKeys.find(
      (unique) => unique.length === names.length && unique.every((name) => names.includes(name)),
    )
  }

  /** Describes the unique indexes in words. */
  describeUniques(): string {
    const lists = new Set(this.#uniqueKeys.map((list) => `(${list.join(', ')})`))
    const found = `Unique indexes: ${lists.size === 0 ? 'none' : [...lists].join(', ')}`
    return this.#keyProblem === undefined
      ? found
      : `${found}. The primary key (${this.#primary.join(', ')}) ${this.#keyProblem}`
  }
}

/** The range of each integer type. */
export const integerRanges: Readonly<Record<string, readonly [least: bigint, most: bigint]>> = {
  int2: [-(2n ** 15n), 2n ** 15n - 1n],
  int4: [-(2n ** 31n), 2n ** 31n - 1n],
  int8: [-(2n ** 63n), 2n ** 63n - 1n],
  oid: [0n, 2n ** 32n - 1n],
}
