import type { Database } from '../../postgres/database.js'
import type { Tx } from '../../postgres/executor.js'
import type { Table } from './table.js'
import { readTable, toTable } from './table-definition.js'
import { readTableName } from './table-name.js'

/** The catalog caches at most this many tables, and then drops the one that was read first. */
const MAX_TABLES = 1_000

/** Caches the definitions of the caller's tables. */
export class Catalog {
  readonly #database: Database
  /** The table that each name meant last. */
  readonly #latest = new Map<string, Table>()
  /** All tables that a name has meant, by name and fingerprint: if each tenant has a schema, each call may mean another table. */
  readonly #versions = new Map<string, Table>()

  constructor(database: Database) {
    this.#database = database
  }

  /** Returns the cached table that this name meant last. */
  find(name: unknown): Table | undefined {
    return typeof name === 'string' ? this.#latest.get(name) : undefined
  }

  /** Returns the cached table of this name that has this fingerprint. */
  findVersion(name: unknown, fingerprint: string | null): Table | undefined {
    const table = this.#versions.get(versionKey(`${name}`, `${fingerprint}`))
    if (table) this.#latest.set(table.name.input, table)
    return table
  }

  /** Makes the next call read the table again, unless a newer version is cached. */
  forget(table: Table): void {
    const { input } = table.name
    this.#versions.delete(versionKey(input, table.fingerprint))
    if (this.find(input) === table) this.#latest.delete(input)
  }

  /** Reads a table in the caller's transaction, which may have created the table. */
  async read(input: unknown, tx: Tx | undefined, field = 'table'): Promise<Table> {
    const name = readTableName(input, field)
    const values = [name.quoted, name.schema ?? null]
    const [row] = await this.#database.send(readTable, values, { tx })
    const table = toTable(name, JSON.parse(`${row?.definition}`), field)
    const [first] = this.#versions.values()
    if (first && this.#versions.size >= MAX_TABLES) this.forget(first)
    this.#latest.set(name.input, table)
    this.#versions.set(versionKey(name.input, table.fingerprint), table)
    return table
  }
}

const versionKey = (name: string, fingerprint: string): string => `${fingerprint} ${name}`
