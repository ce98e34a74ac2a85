import { DatabaseError, InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import type { EventOrigin } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { quoteIdentifier } from '../postgres/identifier.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import { Catalog } from './catalog/catalog.js'
import type { Table } from './catalog/table.js'
import { rowBusyError } from './row-busy-error.js'
import type { RowCall, RowResult } from './row-call.js'

/** The most tries of a call whose table changes each time. */
const MAX_TRIES = 4

/** SQLSTATEs that mean that a type or a schema does not exist. */
const RENAMED = new Set(['42704', '3F000'])

/** Sends reads and writes of rows in the caller's own tables. One for each instance, because it caches the definitions of tables. */
export class Rows {
  readonly #database: Database
  readonly #catalog: Catalog

  constructor(database: Database) {
    this.#database = database
    this.#catalog = new Catalog(database)
  }

  /** The schema of Dibs, quoted for SQL. */
  get schema(): string {
    return quoteIdentifier(this.#database.schema)
  }

  /** Whether the server has views that use the rights of their reader (`security_invoker`). */
  get hasInvokerViews(): boolean {
    return this.#database.serverMajor >= 15
  }

  get origin(): EventOrigin {
    return this.#database.origin
  }

  /** Returns a table from the cache, or reads it. `field` is the option that names the table, for error messages. */
  async table(tx: Tx | undefined, field: string, name: string): Promise<Table> {
    return this.#catalog.find(name) ?? (await this.#catalog.read(name, tx, field))
  }

  /** Drops a table from the cache, so that the next call reads it again. */
  forget(name: string): void {
    const table = this.#catalog.find(name)
    if (table) this.#catalog.forget(table)
  }

  /** Sends a statement of Dibs about the caller's tables. */
  async send(statement: Statement, values: readonly TextValue[], tx: Tx | undefined): Promise<TextRow[]> {
    return this.#database.send(statement, values, { tx })
  }

  /** Reads the table as it is now. */
  read(tx: Tx | undefined, name: unknown): Promise<Table> {
    return this.#catalog.read(name, tx)
  }

  /** Sends the call that `build` makes for the table: one round trip, and one more if the table is not cached yet. */
  async call(
    tx: Tx | undefined,
    name: unknown,
    build: (table: Table) => RowCall,
  ): Promise<readonly RowResult[]> {
    let known = this.#catalog.find(name)
    for (let attempt = 1; ; attempt++) {
      const table = known ?? (await this.#catalog.read(name, tx))
      const call = this.#build(build, table, known !== undefined)
      // Input that does not fit the cached table may fit after a migration, so the table is read again.
      known = undefined
      if (call === undefined) continue
      const sentAt = performance.now()
      const rows = await this.#send(tx, table, call).catch((error) =>
        this.#forgetStale(error, table, tx === undefined && attempt < MAX_TRIES),
      )
      if (rows === undefined) continue
      // A refusal is the last row, because rows may have been locked before it.
      const { state, detail = null } = rows.at(-1) ?? {}
      if (state === 'busy')
        throw await rowBusyError(this.#database, {
          tx,
          table,
          call,
          detail,
          tookMs: performance.now() - sentAt,
        })
      if (state === 'invalid') throw toDatabaseError(table, detail)
      if (state !== 'moved' && state !== 'another') return rows
      // The name means another table by now, or for this caller. The table is read again, unless it is cached.
      if (attempt >= MAX_TRIES) throw toDatabaseError(table, state === 'moved' ? detail : null)
      if (state === 'another') known = this.#catalog.findVersion(name, detail)
    }
  }

  /**
   * A type that was renamed makes the statement itself fail. Without `tx`, nothing was done and the statement is sent again. With `tx`, the error has aborted
   * the transaction.
   */
  #forgetStale(error: unknown, table: Table, mayRetry: boolean): undefined {
    if (!(error instanceof DatabaseError && RENAMED.has(error.sqlState))) throw error
    this.#catalog.forget(table)
    if (!mayRetry) throw error
  }

  #build(build: (table: Table) => RowCall, table: Table, mayBeOld: boolean): RowCall | undefined {
    try {
      return build(table)
    } catch (error) {
      if (!(error instanceof InvalidInputError)) throw error
      if (mayBeOld) return undefined
      throw error
    }
  }

  async #send(
    tx: Tx | undefined,
    table: Table,
    { name, statements, args, waitMs, limit, rest = [] }: RowCall,
  ): Promise<readonly RowResult[]> {
    const columns = [...table.columns.values()]
    const empty = `select $1::text, $2::text, ${columns.map(({ cast }) => `null::${cast}`).join(', ')}`
    const texts = [table.quoted, table.fingerprint, ...statements, empty]
    const values = [...texts, args.text, String(Math.max(1, waitMs)), ...rest]
    const types = [...texts.map(() => 'text'), 'text[]', 'integer', ...rest.map(() => 'integer')]
    const places = types.map((type, n) => `$${n + 1}::text::${type}`)
    const [state, about] = [table.unusedName('dibs_state'), table.unusedName('dibs_detail')]
    const answer = [
      `"${state}" text`,
      `"${about}" text`,
      ...columns.map(({ quoted, cast }) => `${quoted} ${cast}`),
    ]
    const text = `select * from ${this.schema}.${name}(${places.join(', ')}) as t(${answer.join(', ')})`
    const rows = await this.#database.query(text, values, { tx, waitMs, limit })
    return rows.map(({ [state]: stateText, [about]: detail, ...row }) => ({
      state: String(stateText),
      detail: typeof detail === 'string' ? detail : null,
      row,
    }))
  }
}

/** Converts what the server reported about the last statement. For example, a trigger function of the caller may name something that does not exist. */
function toDatabaseError(table: Table, detail: string | null): DatabaseError {
  const [sqlState = 'XX000', ...words] = (
    detail ?? `42P01 table ${table.name.input} is another one each time`
  ).split(' ')
  return new DatabaseError(`PostgreSQL answered ${sqlState}: ${words.join(' ')}`, sqlState)
}
