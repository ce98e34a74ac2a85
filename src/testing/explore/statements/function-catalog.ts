import type { ClientBase } from 'pg'
import { BUILT_IN_LOOK_UP, type FoundFunction, FUNCTION_LOOK_UP } from './catalog-queries.js'
import { parseStatements } from './parse-statements.js'

/**
 * Built-in functions that are volatile only because each call may return another value, or because they change the session
 * alone. Other sessions see no effect, and no lock is taken, so a query that calls them is still a read. Not in the list:
 *
 * - `nextval` and `setval`, whose effect others see at once, even after a rollback
 * - `pg_notify`, which others receive after COMMIT
 * - advisory locks
 * - the sizes of tables, which show uncommitted work
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

/** Built-in functions that are not volatile and yet see more than their parameters and the tables of their statement. */
const SEES_MORE =
  /^(?:(?:query|table|schema|database|cursor)_to_xml|txid_|pg_current_|pg_export_|pg_snapshot_|pg_visible_|pg_xact_|pg_get_|pg_stat_|pg_relation_|pg_table_|has_)/

const SETTINGS = /\bset_config\b|isolation|search_path/i

/** Looks up functions, with those that they call and those of triggers, and remembers what it found. */
export class FunctionCatalog {
  /** A known function that may change the isolation level or the search path of its session. */
  settingsChanger: string | undefined
  /** True if a known function or trigger may write to tables that no statement names. */
  hasHiddenWriters = false
  /** Schemas of Dibs with known functions that run as one step. Schemas made for tests are left out. */
  readonly dibsSchemas = new Set<string>()
  readonly #control: Pick<ClientBase, 'query'>
  /** By the name as a statement writes it: whether the function may write or lock. */
  readonly #mayWrite = new Map<string, boolean>()
  /** By the name: why a call may do or see anything. */
  readonly #unpredictable = new Map<string, string>()
  readonly #builtIn = new Set<string>()
  readonly #atomic = new Set<string>()
  readonly #atomicOfDibs = new Set<string>()

  constructor(control: Pick<ClientBase, 'query'>) {
    this.#control = control
  }

  knows(name: string): boolean {
    return this.#mayWrite.has(name)
  }

  /** @param written tables whose triggers may run */
  async learn(names: readonly string[], written: readonly string[]): Promise<void> {
    const others = await this.#learnBuiltIns(names)
    if (others.length > 0 || written.length > 0) await this.#learnUserFunctions(others, written)
  }

  /** Most functions are built in and share their name with no other: this look-up takes 0.3 ms in place of 5. */
  async #learnBuiltIns(names: readonly string[]): Promise<readonly string[]> {
    if (names.length === 0) return names
    const { rows } = await this.#control.query<{ name: string; isVolatile: boolean }>(BUILT_IN_LOOK_UP, [
      names,
    ])
    for (const { name, isVolatile } of rows) {
      const mayWrite = isVolatile && !HARMLESS.has(name)
      this.#builtIn.add(name)
      this.#mayWrite.set(name, mayWrite)
      if (mayWrite || SEES_MORE.test(name))
        this.#unpredictable.set(name, `${name}() sees or does more than it says`)
    }
    return names.filter((name) => !this.#mayWrite.has(name))
  }

  async #learnUserFunctions(names: readonly string[], written: readonly string[]): Promise<void> {
    const { rows } = await this.#control.query<FoundFunction>(FUNCTION_LOOK_UP, [names, written])
    for (const name of names) {
      const found = rows.filter(({ requested }) => requested === name)
      this.#mayWrite.set(name, found.length === 0 || found.some(writesOrLocks))
      if (found.length > 0 && found.every(({ isBuiltIn }) => isBuiltIn)) this.#builtIn.add(name)
      const isPlain = found.every((one) => one.isBuiltIn && !one.isVolatile && !SEES_MORE.test(one.proname))
      if (found.length === 0) this.#unpredictable.set(name, `${name}() is not known`)
      else if (!isPlain) this.#unpredictable.set(name, `it calls ${found[0]?.name}`)
    }
    for (const found of rows) if (isAtomic(found)) this.#noteAtomic(found)
    this.settingsChanger ??= rows.find(
      ({ source, isBuiltIn }) => !isBuiltIn && SETTINGS.test(source ?? ''),
    )?.name
    this.hasHiddenWriters ||= rows.some(({ isVolatile, isBuiltIn }) => isVolatile && !isBuiltIn)
  }

  #noteAtomic({ name, dibsSchema, isTestSchema }: FoundFunction): void {
    if (dibsSchema === null) return void this.#atomic.add(name)
    this.#atomicOfDibs.add(name)
    if (!isTestSchema) this.dibsSchemas.add(dibsSchema)
  }

  /** True if the function is volatile, calls a volatile function, or is unknown. */
  mayWrite(name: string): boolean {
    return this.#mayWrite.get(name) ?? true
  }

  whyUnpredictable(name: string): string | undefined {
    return this.#mayWrite.has(name) ? this.#unpredictable.get(name) : `${name}() is not known`
  }

  isBuiltIn(name: string): boolean {
    return this.#builtIn.has(name)
  }

  /** The known functions of the user that run as one step, sorted: `app.take(text)`. */
  get atomic(): readonly string[] {
    return [...this.#atomic].sort()
  }

  /** The known functions of Dibs that run as one step. */
  get atomicOfDibs(): readonly string[] {
    return [...this.#atomicOfDibs].sort()
  }

  forget(): void {
    this.#mayWrite.clear()
    this.#unpredictable.clear()
    this.#builtIn.clear()
    this.#atomic.clear()
    this.#atomicOfDibs.clear()
    this.dibsSchemas.clear()
  }
}

/** A stable function cannot write, but it can call one that does. */
const writesOrLocks = ({ isVolatile, isBuiltIn, proname }: FoundFunction): boolean =>
  isVolatile && !(isBuiltIn && HARMLESS.has(proname))

/** True if the function runs several statements with no yield point between them, so that the explorer runs it as one step. */
function isAtomic({ isBuiltIn, isVolatile, proname, language, source }: FoundFunction): boolean {
  if (isBuiltIn || source === null || proname === 'dibs_point' || /\bdibs_point\s*\(/.test(source))
    return false
  // An SQL function whose body is not a string has `begin atomic … end` around it, which is no statement.
  if (language === 'sql') {
    const statements = parseStatements(source.replace(/^\s*begin atomic\b|\bend\s*$/gi, ''))
    // Each call of a volatile function sees what was committed since the last, also within one statement.
    return statements.length > 1 || (isVolatile && statements.some(({ tables }) => tables.length > 0))
  }
  // A PL/pgSQL trigger that only fills in a column runs no statement. In other languages these words mean nothing.
  return (
    language !== 'plpgsql' ||
    /\b(select|insert|update|delete|merge|perform|execute|call|lock|truncate)\b/i.test(source)
  )
}
