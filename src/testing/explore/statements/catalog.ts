import type { ClientBase } from 'pg'
import { type FoundFunction, FUNCTION_LOOK_UP } from './function-look-up.js'
import { parseStatements, type Statement } from './parse-statements.js'

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

/** What the server knows about the functions that statements call, directly, in turn, or through triggers. */
export class Catalog {
  readonly #control: Pick<ClientBase, 'query'>
  /** Name, as a statement writes it, to whether it may write or lock. */
  readonly #functions = new Map<string, boolean>()
  readonly #tables = new Set<string>()
  readonly #atomic = new Set<string>()
  #hasHiddenWriters = false
  #hasTriggers: boolean | undefined

  constructor(control: Pick<ClientBase, 'query'>) {
    this.#control = control
  }

  /**
   * Looks up the functions, and the triggers of the tables, that it has not met yet: with one query at most, and
   * none when all are known.
   */
  async learn(statement: Statement): Promise<void> {
    const { functions, tables } = this.#unknown(statement)
    if (functions.length + tables.length === 0) return
    // Mostly there is no trigger anywhere, and the big question can be saved.
    if (functions.length === 0) this.#hasTriggers ??= await this.#askForTriggers()
    for (const name of tables) this.#tables.add(name)
    if (functions.length === 0 && !this.#hasTriggers) return
    const { rows } = await this.#control.query<FoundFunction>(FUNCTION_LOOK_UP, [functions, tables])
    for (const name of functions) {
      const found = rows.filter(({ asked }) => asked === name)
      this.#functions.set(name, found.length === 0 || found.some(writesOrLocks))
    }
    for (const found of rows) if (isAtomic(found)) this.#atomic.add(found.name)
    this.#hasHiddenWriters ||= rows.some(({ isVolatile, isBuiltIn }) => isVolatile && !isBuiltIn)
  }

  async #askForTriggers(): Promise<boolean> {
    const { rows } = await this.#control.query<{ has: boolean }>(
      'select exists (select from pg_catalog.pg_trigger where not tgisinternal) as has',
    )
    return rows[0]?.has === true
  }

  /** Functions or triggers were met that may write what no statement names. */
  get hasHiddenWriters(): boolean {
    return this.#hasHiddenWriters
  }

  /** There is nothing to learn about it. */
  knows(statement: Statement): boolean {
    const { functions, tables } = this.#unknown(statement)
    return functions.length + tables.length === 0
  }

  #unknown(statement: Statement): { functions: string[]; tables: string[] } {
    const functions = statement.functions.filter((name) => !this.#functions.has(name))
    const fires = statement.kind === 'work' // a read fires no trigger
    return { functions, tables: fires ? statement.tables.filter((name) => !this.#tables.has(name)) : [] }
  }

  /** Some function it calls is volatile or unknown: it may write or lock, whatever the statement looks like. */
  mayWrite(statement: Statement): boolean {
    return statement.functions.some((name) => this.#functions.get(name) ?? true)
  }

  /**
   * Functions met so far that run statements of their own and have no yield point between them, so that the
   * explorer tries no order of these: `app.take(text)`, sorted.
   */
  get atomicFunctions(): readonly string[] {
    return [...this.#atomic].sort()
  }

  /** To be called when the schema was changed. */
  forget(): void {
    this.#hasTriggers = undefined
    this.#functions.clear()
    this.#tables.clear()
    this.#atomic.clear()
  }
}

/** A stable function cannot write, but it can call one that does. */
function writesOrLocks({ isVolatile, isBuiltIn, proname }: FoundFunction): boolean {
  return isVolatile && !(isBuiltIn && HARMLESS.has(proname))
}

function isAtomic({ isBuiltIn, proname, language, source }: FoundFunction): boolean {
  if (isBuiltIn || source === null || proname === 'dibs_point' || /\bdibs_point\s*\(/.test(source))
    return false
  // `begin atomic … end`, of SQL functions whose body is not a string.
  if (language === 'sql')
    return parseStatements(source.replace(/^\s*begin atomic\b|\bend\s*$/gi, '')).length > 1
  // A trigger that only fills a column in runs no statement. In other languages the words mean nothing.
  return (
    language !== 'plpgsql' ||
    /\b(select|insert|update|delete|merge|perform|execute|call|lock|truncate)\b/i.test(source)
  )
}
