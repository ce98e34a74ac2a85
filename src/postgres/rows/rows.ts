import {
  type Blocker,
  BusyError,
  DatabaseError,
  InvalidInputError,
  NotFoundError,
  NotWrittenError,
} from '../../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../check-duration.js'
import type { Database, StatementLimit } from '../database.js'
import { type EventOrigin, emit } from '../events.js'
import type { Row, Tx } from '../executor.js'
import { quoteIdentifier } from '../identifier.js'
import { type Statement, statement } from '../statement.js'
import { dateFromMicros, type TextRow, type TextValue } from '../text-values.js'
import { Catalog } from './catalog.js'
import { ROW, type RowArgs } from './row-args.js'
import { nameRow, showId } from './row-id.js'
import type { Table } from './table.js'

/** How long a call waits by default for rows that others have locked. */
export const WAIT_MS = 5_000
const RETRY_MS = 100
/** The most tries of a call whose table changes each time. */
const MAX_LOOKS = 4

/** SQLSTATEs that mean that a type or a schema does not exist. */
const RENAMED = new Set(['42704', '3F000'])

/** Finds the id of a locked row, and who has locked it. */
const findHolders = statement(
  `select (h.told)[1]::text as id, {schema}.row_blockers(pg_catalog.to_regclass($1::text), (h.told)[2:])::text as blockers
   from (select {schema}.row_lockers($2::text, $3::text::text[]) as told) h`,
)

/** Options of every call of `dibs.rows`. */
export interface RowOptions {
  /** Your own open transaction. Without it, the call commits by itself. */
  readonly tx?: Tx | undefined
  /** How long to wait for other transactions that have locked the row, then `BusyError`. 0: do not wait. Default 5,000. */
  readonly waitMs?: number | undefined
}

export const checkWait = (waitMs: unknown = WAIT_MS): number =>
  checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS)

/** A call of one of the functions in sql/0017_rows.sql and sql/0018_aggregate.sql, for a table whose columns are known. */
export interface RowCall {
  readonly name: 'row_write' | 'row_lock' | 'row_claim' | 'aggregate_recompute' | 'aggregate_refresh'
  /** The arguments between the table and the values. */
  readonly statements: readonly string[]
  readonly args: RowArgs
  /** The arguments after the wait. */
  readonly rest?: readonly TextValue[]
  /** How long the call may wait. 0: do not wait. */
  readonly waitMs: number
  /** The other row that the call may have waited for. */
  readonly second?: Pick<SecondWrite, 'table' | 'held'> | undefined
  /** For a statement that may take long: sent in a transaction of its own, which the server ends after this limit. */
  readonly limit?: StatementLimit | undefined
}

/** A row as the caller's driver returns it, and what the SQL function reports about it. */
export interface ToldRow {
  readonly state: string
  readonly told: string | null
  readonly row: Row
}

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
  async table(tx: Tx | undefined, field: string, given: string): Promise<Table> {
    return this.#catalog.find(given) ?? (await this.#catalog.read(given, tx, field))
  }

  /** Drops a table from the cache, so that the next call reads it again. */
  forget(given: string): void {
    const table = this.#catalog.find(given)
    if (table) this.#catalog.forget(table)
  }

  /** Sends one of our own statements about the caller's tables. */
  async send(statement: Statement, values: readonly TextValue[], tx: Tx | undefined): Promise<TextRow[]> {
    return this.#database.send(statement, values, tx)
  }

  /** Reads the table as it is now. */
  read(tx: Tx | undefined, given: unknown): Promise<Table> {
    return this.#catalog.read(given, tx)
  }

  /** Sends the call that `build` makes for the table: one round trip, and one more if the table is not cached yet. */
  async call(
    tx: Tx | undefined,
    given: unknown,
    build: (table: Table) => RowCall,
  ): Promise<readonly ToldRow[]> {
    let known = this.#catalog.find(given)
    for (let looks = 1; ; looks++) {
      const table = known ?? (await this.#catalog.read(given, tx))
      const call = this.#build(build, table, known !== undefined)
      // Input that does not fit the cached table may fit after a migration, so the table is read again.
      known = undefined
      if (call === undefined) continue
      const sentAt = performance.now()
      const rows = await this.#send(tx, table, call).catch((error) =>
        this.#forgetStale(error, table, tx === undefined && looks < MAX_LOOKS),
      )
      if (rows === undefined) continue
      // A refusal is the last row, because rows may have been locked before it.
      const { state, told = null } = rows.at(-1) ?? {}
      if (state === 'busy') throw await this.#refuse(tx, table, call, told, performance.now() - sentAt)
      if (state === 'invalid') throw toDatabaseError(table, told)
      if (state !== 'moved' && state !== 'another') return rows
      // The name means another table by now, or for this caller. The table is read again, unless it is cached.
      if (looks >= MAX_LOOKS) throw toDatabaseError(table, state === 'moved' ? told : null)
      if (state === 'another') known = this.#catalog.recall(given, told)
    }
  }

  /**
   * A type that was renamed makes the statement itself fail. Without `tx`, nothing was done and the statement is sent again. With `tx`, the error has aborted
   * the transaction.
   */
  #forgetStale(error: unknown, table: Table, mayLookAgain: boolean): undefined {
    if (!(error instanceof DatabaseError && RENAMED.has(error.sqlState))) throw error
    this.#catalog.forget(table)
    if (!mayLookAgain) throw error
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
  ): Promise<readonly ToldRow[]> {
    const columns = [...table.columns.values()]
    const empty = `select $1::text, $2::text, ${columns.map(({ cast }) => `null::${cast}`).join(', ')}`
    const texts = [table.quoted, table.mark, ...statements, empty]
    const values = [...texts, args.text, String(Math.max(1, waitMs)), ...rest]
    const types = [...texts.map(() => 'text'), 'text[]', 'integer', ...rest.map(() => 'integer')]
    const places = types.map((type, n) => `$${n + 1}::text::${type}`)
    const [state, about] = [table.freeName('dibs_state'), table.freeName('dibs_told')]
    const answer = [
      `"${state}" text`,
      `"${about}" text`,
      ...columns.map(({ quoted, cast }) => `${quoted} ${cast}`),
    ]
    const text = `select * from ${this.schema}.${name}(${places.join(', ')}) as t(${answer.join(', ')})`
    const rows = await this.#database.query(text, values, { tx, waitMs, limit })
    return rows.map(({ [state]: said, [about]: told, ...row }) => ({
      state: String(said),
      told: typeof told === 'string' ? told : null,
      row,
    }))
  }

  /** Reports the time that the call took. A caller's own statement timeout can shorten the wait. Several lockers, one after the other, can prolong it. */
  async #refuse(
    tx: Tx | undefined,
    table: Table,
    call: RowCall,
    told: string | null,
    tookMs: number,
  ): Promise<BusyError> {
    const waitedMs = call.waitMs === 0 ? 0 : Math.round(tookMs)
    const { given } = table.name
    const what = call.name === 'row_claim' ? `table "${given}"` : `rows of table "${given}"`
    const own = { given, what, blockers: readBlockers(told) }
    const { blockers, ...held } = (await this.#findSecond(tx, call, own.blockers)) ?? own
    emit('dibs:row.locked-out', {
      ...this.#database.origin,
      table: held.given,
      waitedMs,
      blockers: blockers.length,
    })
    return new BusyError(held.what, waitedMs, RETRY_MS, { blockers })
  }

  /** Returns the second row if others have locked that row and not the first. */
  async #findSecond(tx: Tx | undefined, { second, args }: RowCall, ofFirst: readonly Blocker[]) {
    if (second === undefined || ofFirst.some(({ isSure }) => isSure)) return undefined
    const { given, quoted } = second.table.name
    const [row] = await this.#database.send(findHolders, [quoted, second.held, args.text], tx)
    const blockers = readBlockers(row?.blockers ?? null).filter(({ isSure }) => isSure)
    if (blockers.length === 0) return undefined
    const values: string[] = JSON.parse(`${row?.id}`)
    const [first] = values
    const id =
      values.length === 1
        ? first
        : Object.fromEntries(second.table.key.map(({ name }, n) => [name, values[n]]))
    return { given, what: nameRow(given, id), blockers }
  }
}

/** Converts what the server reported about the last statement. For example, a trigger function of the caller may name something that does not exist. */
function toDatabaseError(table: Table, told: string | null): DatabaseError {
  const [sqlState = 'XX000', ...words] = (
    told ?? `42P01 table ${table.name.given} is another one each time`
  ).split(' ')
  return new DatabaseError(`PostgreSQL answered ${sqlState}: ${words.join(' ')}`, sqlState)
}

interface ToldBlocker {
  readonly pid: number
  readonly application: string | null
  readonly since: number | null
  readonly query: string | null
  readonly sure: boolean
}

function readBlockers(told: string | null): readonly Blocker[] {
  const blockers: ToldBlocker[] = told === null ? [] : JSON.parse(told)
  return blockers.map(({ pid, application, since, query, sure }) => ({
    pid,
    application: application ?? '',
    isSure: sure,
    ...(since === null ? {} : { since: dateFromMicros(String(since)) }),
    ...(query === null ? {} : { query }),
  }))
}

/** See `RowWrite.also`. */
export interface SecondWrite {
  readonly write: string
  readonly isWanted: string
  readonly table: Table
  /** SQL that returns the id of the row, as a JSON array, and who has locked the row. */
  readonly held: string
}

/** A write of one row: the write itself, and the read that tells why nothing was written. */
export interface RowWrite {
  readonly table: Table
  readonly args: RowArgs
  /** The condition that identifies the row. */
  readonly match: string
  /** The statement up to `returning`. */
  readonly write: string
  /** The SQL expression to report about the existing row. */
  readonly told?: string
  /**
   * A second write up to `returning`, of another row, based on the result of the first write. `written` is the name of that result.
   *
   * If the second write finds no row although `isWanted` is true of the result, both writes are undone and tried again. The first write may have waited,
   * so that this statement cannot see the other row.
   */
  readonly also?: (written: string) => SecondWrite
  /** The SQL condition under which the write would succeed by now, and is tried again. */
  readonly again: string
  readonly waitMs: number
}

export function rowWrite({
  table,
  args,
  match,
  write,
  also,
  told = 'null',
  again,
  waitMs,
}: RowWrite): RowCall {
  const written = `${write} returning 'written'::text as "${table.freeName('dibs_state')}", null::text as "${table.freeName('dibs_told')}", ${table.list(`${ROW}.`)}`
  const look = `select case when ${again} then 'again' else 'looked' end::text as dibs_state, (${told})::text as dibs_told, ${table.list(`${ROW}.`)} from ${table.quoted} as ${ROW} where ${match}`
  const second = also?.('"dibs_w"')
  return {
    name: 'row_write',
    second,
    statements: [
      second ? withAlso(written, second) : written,
      look,
      ` for no key update of ${ROW}`,
      lockersOf(table, match),
    ],
    args,
    waitMs,
  }
}

function withAlso(written: string, { write, isWanted }: SecondWrite): string {
  return `with "dibs_w" as (${written}), "dibs_a" as (${write} returning 1)
select * from "dibs_w" where exists (select from "dibs_a") or not (${isWanted})`
}

/** SQL that reads who has locked these rows, as noted in the rows themselves. */
export function lockersOf(table: Table, match: string): string {
  return `select pg_catalog.array_agg(distinct ${ROW}.xmax::text) from ${table.quoted} as ${ROW} where ${match}`
}

/** Returns the result for the one row. Throws if the row does not exist or was not written. */
export function expectRow([first]: readonly ToldRow[], table: string, id: unknown): ToldRow {
  if (first?.state === 'unwritten') throw new NotWrittenError(nameRow(table, id), table, showId(id))
  if (first && first.state !== 'absent') return first
  throw new NotFoundError(nameRow(table, id), table, showId(id))
}
