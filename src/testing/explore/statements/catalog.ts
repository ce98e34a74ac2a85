import type { ClientBase } from 'pg'
import {
  ANYTHING_HIDDEN,
  BUILT_IN_LOOK_UP,
  type FoundFunction,
  FUNCTION_LOOK_UP,
  OWN_CODE,
  TABLE_LOOK_UP,
} from './function-look-up.js'
import { parseStatements, type Statement } from './parse-statements.js'
import { TableBook, type TableFacts } from './table-facts.js'

/**
 * Built-in functions that PostgreSQL calls volatile because each call may answer something else, or because they
 * change the session alone. They neither write what another session can see nor take a lock, so a query that calls
 * them is still a read. Not among them: `nextval` and `setval`, whose effect others see at once and whatever becomes
 * of the transaction, so that their order counts; `pg_notify`, which others hear at COMMIT; advisory locks; and the
 * sizes of tables, which show uncommitted work.
 */
const HARMLESS = new Set([
  'clock_timestamp',
  'currval',
  'gen_random_uuid',
  'lastval',
  'pg_sleep',
  'pg_sleep_for',
  'pg_sleep_until',
  'random',
  'random_normal',
  'set_config',
  'setseed',
  'timeofday',
  'uuidv4',
  'uuidv7',
])

/** Built-in functions that are not volatile and yet see more than their parameters and the tables beside them. */
const FAR_SIGHTED =
  /^(?:(?:query|table|schema|database|cursor)_to_xml|txid_|pg_current_|pg_export_|pg_snapshot_|pg_visible_|pg_xact_|pg_get_|pg_stat_|pg_relation_|pg_table_|has_)/

const SETTINGS = /\bset_config\b|isolation|search_path/i

/** Names of what the user has made. */
interface OwnCode {
  readonly operators: ReadonlySet<string>
  readonly casts: ReadonlySet<string>
}

/** What the server knows about the functions that statements call, directly, in turn, or through triggers. */
export class Catalog {
  readonly #control: Pick<ClientBase, 'query'>
  /** Name, as a statement writes it, to whether it may write or lock. */
  readonly #functions = new Map<string, boolean>()
  /** Name to why a call of it may do or see anything. */
  readonly #surprises = new Map<string, string>()
  readonly #builtIn = new Set<string>()
  #ownCode: OwnCode | undefined
  /** Name to whether reading it may run functions that no statement names. */
  readonly #tables = new Map<string, boolean>()
  /** Tables whose triggers are known. */
  readonly #fired = new Set<string>()
  readonly #atomic = new Set<string>()
  /** Functions of Dibs that run as one step. */
  readonly #atomicInDibs = new Set<string>()
  /** Schemas in which Dibs has such functions, but for those of tests. */
  readonly #dibsSchemas = new Set<string>()
  #hasHiddenWriters = false
  #setter: string | undefined
  #hasHidden: boolean | undefined

  readonly #book: TableBook

  /** @param isPathKnown actors have the same search_path as `control` */
  constructor(control: Pick<ClientBase, 'query'>, isPathKnown = true) {
    this.#control = control
    this.#book = new TableBook(control, isPathKnown)
  }

  /**
   * Looks up the functions, and the triggers of the tables, that it has not met yet; asks nothing when all are
   * known.
   */
  async learn(statement: Statement): Promise<void> {
    const { functions, tables, fired } = this.#unknown(statement)
    if (functions.length + tables.length + fired.length === 0) return
    await this.#book.learn(tables)
    this.#ownCode ??= await this.#askForOwnCode()
    // Mostly there is neither trigger nor view anywhere, and the big questions can be saved.
    if (tables.length + fired.length > 0) this.#hasHidden ??= await this.#askForHidden()
    for (const name of tables) this.#tables.set(name, false)
    for (const name of fired) this.#fired.add(name)
    if (this.#hasHidden && tables.length > 0) await this.#learnTables(tables)
    const others = await this.#learnBuiltIns(functions)
    if (others.length > 0 || (this.#hasHidden && fired.length > 0)) await this.#learnFunctions(others, fired)
  }

  /** Most are PostgreSQL's own, and nobody else has one of that name: 0.3 ms in place of 5. */
  async #learnBuiltIns(functions: readonly string[]): Promise<string[]> {
    if (functions.length === 0) return []
    const { rows } = await this.#control.query<{ name: string; isVolatile: boolean }>(BUILT_IN_LOOK_UP, [
      functions,
    ])
    for (const { name, isVolatile } of rows) {
      this.#builtIn.add(name)
      this.#functions.set(name, isVolatile && !HARMLESS.has(name))
      if ((isVolatile && !HARMLESS.has(name)) || FAR_SIGHTED.test(name))
        this.#surprises.set(name, `${name}() sees or does more than it says`)
    }
    return functions.filter((name) => !this.#functions.has(name))
  }

  async #learnFunctions(functions: readonly string[], fired: readonly string[]): Promise<void> {
    const { rows } = await this.#control.query<FoundFunction>(FUNCTION_LOOK_UP, [functions, fired])
    for (const name of functions) {
      const found = rows.filter(({ asked }) => asked === name)
      this.#functions.set(name, found.length === 0 || found.some(writesOrLocks))
      if (found.length > 0 && found.every(({ isBuiltIn }) => isBuiltIn)) this.#builtIn.add(name)
      const isPlain = found.every((one) => one.isBuiltIn && !one.isVolatile && !FAR_SIGHTED.test(one.proname))
      if (found.length === 0) this.#surprises.set(name, `${name}() is not known`)
      else if (!isPlain) this.#surprises.set(name, `it calls ${found[0]?.name}`)
    }
    for (const found of rows) if (isAtomic(found)) this.#noteAtomic(found)
    this.#setter ??= rows.find(({ source, isBuiltIn }) => !isBuiltIn && SETTINGS.test(source ?? ''))?.name
    this.#hasHiddenWriters ||= rows.some(({ isVolatile, isBuiltIn }) => isVolatile && !isBuiltIn)
  }

  #noteAtomic({ name, dibsSchema, isTestSchema }: FoundFunction): void {
    if (dibsSchema === null) return void this.#atomic.add(name)
    this.#atomicInDibs.add(name)
    if (!isTestSchema) this.#dibsSchemas.add(dibsSchema)
  }

  async #askForHidden(): Promise<boolean> {
    const { rows } = await this.#control.query<{ has: boolean }>(ANYTHING_HIDDEN)
    return rows[0]?.has === true
  }

  async #askForOwnCode(): Promise<OwnCode> {
    const { rows } = await this.#control.query<{ name: string; isOperator: boolean }>(OWN_CODE)
    const named = (isOperator: boolean) =>
      new Set(rows.filter((row) => row.isOperator === isOperator).map(({ name }) => name))
    return { operators: named(true), casts: named(false) }
  }

  async #learnTables(tables: readonly string[]): Promise<void> {
    const { rows } = await this.#control.query<{ name: string; hides: boolean }>(TABLE_LOOK_UP, [tables])
    for (const { name, hides } of rows) this.#tables.set(name, hides)
    this.#hasHiddenWriters ||= rows.some(({ hides }) => hides)
  }

  /** A function that was met and may change the isolation level or the search path of its session. */
  get setter(): string | undefined {
    return this.#setter
  }

  /** Functions or triggers were met that may write what no statement names. */
  get hasHiddenWriters(): boolean {
    return this.#hasHiddenWriters
  }

  /** There is nothing to learn about it. */
  knows(statement: Statement): boolean {
    const { functions, tables, fired } = this.#unknown(statement)
    return functions.length + tables.length + fired.length === 0
  }

  /** `fired`: tables whose triggers it may set off; a read sets off none. */
  #unknown({ kind, functions, tables }: Statement): Record<'functions' | 'tables' | 'fired', string[]> {
    return {
      functions: functions.filter((name) => !this.#functions.has(name)),
      tables: tables.filter((name) => !this.#tables.has(name)),
      fired: kind === 'work' ? tables.filter((name) => !this.#fired.has(name)) : [],
    }
  }

  /**
   * Some function it calls is volatile or unknown, or what it reads is a view or has policies, which may call such ones: it
   * may write or lock, whatever the statement looks like.
   */
  mayWrite({ functions, tables }: Statement): boolean {
    return (
      functions.some((name) => this.#functions.get(name) ?? true) ||
      tables.some((name) => this.#tables.get(name))
    )
  }

  /** Why a call of it may do or see anything; undefined if it does not. */
  surpriseOf(name: string): string | undefined {
    return this.#functions.has(name) ? this.#surprises.get(name) : `${name}() is not known`
  }

  /** There is no function of the user's of that name. */
  isBuiltIn(name: string): boolean {
    return this.#builtIn.has(name)
  }

  /** A cast to a type of that name may call a function of the user's, or check a domain. */
  isOwnCast(typeName: string): boolean {
    return this.#ownCode?.casts.has(typeName) === true
  }

  /** The user has made an operator of that name. */
  isOwnOperator(name: string): boolean {
    return this.#ownCode?.operators.has(name) === true
  }

  table(name: string): TableFacts {
    return this.#book.of(name)
  }

  /**
   * Functions of the user met so far that run statements of their own and have no yield point between them, so that the
   * explorer tries no order of these: `app.take(text)`, sorted.
   */
  get atomicFunctions(): readonly string[] {
    return [...this.#atomic].sort()
  }

  /** Functions of Dibs that run as one step. The tests of Dibs check them. */
  get atomicFunctionsOfDibs(): readonly string[] {
    return [...this.#atomicInDibs].sort()
  }

  /** Schemas of Dibs whose functions were met. Not those made for tests, whose functions have yield points. */
  get dibsSchemas(): readonly string[] {
    return [...this.#dibsSchemas].sort()
  }

  /** To be called when the schema was changed. */
  forget(): void {
    this.#hasHidden = undefined
    this.#functions.clear()
    this.#surprises.clear()
    this.#builtIn.clear()
    this.#ownCode = undefined
    this.#book.forget()
    this.#tables.clear()
    this.#fired.clear()
    this.#atomic.clear()
    this.#atomicInDibs.clear()
    this.#dibsSchemas.clear()
  }
}

/** A stable function cannot write, but it can call one that does. */
function writesOrLocks({ isVolatile, isBuiltIn, proname }: FoundFunction): boolean {
  return isVolatile && !(isBuiltIn && HARMLESS.has(proname))
}

function isAtomic({ isBuiltIn, isVolatile, proname, language, source }: FoundFunction): boolean {
  if (isBuiltIn || source === null || proname === 'dibs_point' || /\bdibs_point\s*\(/.test(source))
    return false
  // `begin atomic … end`, of SQL functions whose body is not a string.
  if (language === 'sql') {
    const statements = parseStatements(source.replace(/^\s*begin atomic\b|\bend\s*$/gi, ''))
    // A volatile one sees what is committed anew with each call, also within one statement.
    return statements.length > 1 || (isVolatile && statements.some(({ tables }) => tables.length > 0))
  }
  // A trigger that only fills a column in runs no statement. In other languages the words mean nothing.
  return (
    language !== 'plpgsql' ||
    /\b(select|insert|update|delete|merge|perform|execute|call|lock|truncate)\b/i.test(source)
  )
}
