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

/** How long a call waits for rows that another has locked. */
export const WAIT_MS = 5_000
const RETRY_MS = 100
/** A table that is another one each time it is looked at is not looked at for ever. */
const MAX_LOOKS = 4

/** There is no such type, or no such schema. */
const RENAMED = new Set(['42704', '3F000'])

/** Which row it is, and who has locked it. */
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

/** A call of one of the functions in sql/0017_rows.sql and sql/0018_aggregate.sql, for a table as it is known. */
export interface RowCall {
  readonly name: 'row_write' | 'row_lock' | 'row_claim' | 'aggregate_recompute' | 'aggregate_refresh'
  /** What stands between the table and the values. */
  readonly statements: readonly string[]
  readonly args: RowArgs
  /** What stands after the wait. */
  readonly rest?: readonly TextValue[]
  /** How long it may wait: 0 if it does not. */
  readonly waitMs: number
  /** The other row that it may have waited for. */
  readonly second?: Pick<SecondWrite, 'table' | 'held'> | undefined
  /** Of a statement that may take long: sent in a transaction of its own, which the server ends after that. */
  readonly limit?: StatementLimit | undefined
}

/** A row as the caller's own driver gives it, and what the function says about it. */
export interface ToldRow {
  readonly state: string
  readonly told: string | null
  readonly row: Row
}

/** Sends what is done to rows of the caller's own tables. One for each instance: it knows the tables. */
export class Rows {
  readonly #database: Database
  readonly #catalog: Catalog

  constructor(database: Database) {
    this.#database = database
    this.#catalog = new Catalog(database)
  }

  /** Our schema, as it stands in SQL. */
  get schema(): string {
    return quoteIdentifier(this.#database.schema)
  }

  /** A view can be read with the rights of whoever reads it. */
  get hasInvokerViews(): boolean {
    return this.#database.serverMajor >= 15
  }

  get origin(): EventOrigin {
    return this.#database.origin
  }

  /** A table as it is known, or as it is; `field` is what names it, for a message. */
  async table(tx: Tx | undefined, field: string, given: string): Promise<Table> {
    return this.#catalog.find(given) ?? (await this.#catalog.read(given, tx, field))
  }

  /** The next call reads it anew. */
  forget(given: string): void {
    const table = this.#catalog.find(given)
    if (table) this.#catalog.forget(table)
  }

  /** One of our own statements about tables of the caller's. */
  async send(statement: Statement, values: readonly TextValue[], tx: Tx | undefined): Promise<TextRow[]> {
    return this.#database.send(statement, values, tx)
  }

  /** The table as it is now. */
  read(tx: Tx | undefined, given: unknown): Promise<Table> {
    return this.#catalog.read(given, tx)
  }

  /** Sends what `build` makes of the table: one round trip, and one more where the table is not known yet. */
  async call(
    tx: Tx | undefined,
    given: unknown,
    build: (table: Table) => RowCall,
  ): Promise<readonly ToldRow[]> {
    let known = this.#catalog.find(given)
    for (let looks = 1; ; looks++) {
      const table = known ?? (await this.#catalog.read(given, tx))
      const call = this.#build(build, table, known !== undefined)
      // What is refused may be right by now, after a migration: it is read again.
      known = undefined
      if (call === undefined) continue
      const sentAt = performance.now()
      const rows = await this.#send(tx, table, call).catch((error) =>
        this.#forgetStale(error, table, tx === undefined && looks < MAX_LOOKS),
      )
      if (rows === undefined) continue
      // What is refused comes last: rows were locked before it.
      const { state, told = null } = rows.at(-1) ?? {}
      if (state === 'busy') throw await this.#refuse(tx, table, call, told, performance.now() - sentAt)
      if (state === 'invalid') throw toDatabaseError(table, told)
      if (state !== 'moved' && state !== 'another') return rows
      // The table is another one by now, or for this caller: it is read again, if it is not one that is known.
      if (looks >= MAX_LOOKS) throw toDatabaseError(table, state === 'moved' ? told : null)
      if (state === 'another') known = this.#catalog.recall(given, told)
    }
  }

  /**
   * A type that has another name by now is an error of the statement itself. Alone nothing was done, and it is sent again; a
   * transaction is aborted by it.
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

  /** The wait may have ended sooner, where the caller's own statement timeout would have ended it; or later, behind several one after the other. */
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

  /** The other row, if it is that which somebody has locked, and not the first. */
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

/** What the server has said of the last statement: perhaps a function of the caller's that runs inside names what is not there. */
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
  /** Answers the id of the row, as the JSON of an array, and who has locked it. */
  readonly held: string
}

/** A write of one row: what it does, and the look that tells why nothing was written. */
export interface RowWrite {
  readonly table: Table
  readonly args: RowArgs
  /** Which row. */
  readonly match: string
  /** The statement up to `returning`. */
  readonly write: string
  /** What is to be told of the row that is there. */
  readonly told?: string
  /**
   * A second write up to `returning`, of another row, by what the first has written: the name of that is given. If it finds none though `isWanted` is true of what was written, both are
   * undone, and tried again: the first may have waited, and the other row be one that this statement cannot see.
   */
  readonly also?: (written: string) => SecondWrite
  /** True where the write would be done by now. */
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

/** Who has locked these rows, as it is noted in them. */
export function lockersOf(table: Table, match: string): string {
  return `select pg_catalog.array_agg(distinct ${ROW}.xmax::text) from ${table.quoted} as ${ROW} where ${match}`
}

/** What was told of the one row, or that it is not there. */
export function expectRow([first]: readonly ToldRow[], table: string, id: unknown): ToldRow {
  if (first?.state === 'unwritten') throw new NotWrittenError(nameRow(table, id), table, showId(id))
  if (first && first.state !== 'absent') return first
  throw new NotFoundError(nameRow(table, id), table, showId(id))
}
