import type { ClientBase } from 'pg'
import { HIDDEN_CODE, TABLE_LOOK_UP, USER_CODE } from './catalog-queries.js'
import { FunctionCatalog } from './function-catalog.js'
import type { Statement } from './parse-statements.js'
import type { SchemaInfo, TableInfo } from './schema-info.js'
import { TableCatalog } from './table-catalog.js'

/** Code of the user that runs without a function call in the statement. */
interface UserCode {
  readonly operators: ReadonlySet<string>
  readonly casts: ReadonlySet<string>
}

/** The names in a statement that are not looked up yet. */
interface UnknownNames {
  readonly functions: readonly string[]
  readonly tables: readonly string[]
  /** Tables whose triggers the statement may fire. A read fires none. */
  readonly written: readonly string[]
}

/** Looks up the functions and tables of statements in the server's catalog, each name once, and remembers them. */
export class SchemaCatalog implements SchemaInfo {
  readonly #control: Pick<ClientBase, 'query'>
  readonly #functions: FunctionCatalog
  readonly #tableInfo: TableCatalog
  /** By the name: whether a read of the table may run functions that no statement names. */
  readonly #tables = new Map<string, boolean>()
  /** Tables whose triggers are known. */
  readonly #written = new Set<string>()
  #userCode: UserCode | undefined
  #hasHiddenCode: boolean | undefined
  #hasHiddenTables = false

  /** @param isPathKnown true if all actors have the same search_path as `control` */
  constructor(control: Pick<ClientBase, 'query'>, isPathKnown = true) {
    this.#control = control
    this.#functions = new FunctionCatalog(control)
    this.#tableInfo = new TableCatalog(control, isPathKnown)
  }

  /** Looks up the functions, the tables and their triggers that are not known yet. */
  async learn(statement: Statement): Promise<void> {
    const { functions, tables, written } = this.#unknownIn(statement)
    if (functions.length + tables.length + written.length === 0) return
    await this.#tableInfo.learn(tables)
    this.#userCode ??= await this.#findUserCode()
    // A database without triggers, views and policies, as most are, does not need the slow look-ups.
    if (tables.length + written.length > 0) this.#hasHiddenCode ??= await this.#findHiddenCode()
    for (const name of tables) this.#tables.set(name, false)
    for (const name of written) this.#written.add(name)
    if (this.#hasHiddenCode && tables.length > 0) await this.#learnTables(tables)
    await this.#functions.learn(functions, this.#hasHiddenCode ? written : [])
  }

  async #findHiddenCode(): Promise<boolean> {
    const { rows } = await this.#control.query<{ has: boolean }>(HIDDEN_CODE)
    return rows[0]?.has === true
  }

  async #findUserCode(): Promise<UserCode> {
    const { rows } = await this.#control.query<{ name: string; isOperator: boolean }>(USER_CODE)
    const named = (isOperator: boolean) =>
      new Set(rows.filter((row) => row.isOperator === isOperator).map(({ name }) => name))
    return { operators: named(true), casts: named(false) }
  }

  async #learnTables(tables: readonly string[]): Promise<void> {
    const { rows } = await this.#control.query<{ name: string; hides: boolean }>(TABLE_LOOK_UP, [tables])
    for (const { name, hides } of rows) this.#tables.set(name, hides)
    this.#hasHiddenTables ||= rows.some(({ hides }) => hides)
  }

  /** True if `learn` would look up nothing. */
  knows(statement: Statement): boolean {
    const { functions, tables, written } = this.#unknownIn(statement)
    return functions.length + tables.length + written.length === 0
  }

  #unknownIn({ kind, functions, tables }: Statement): UnknownNames {
    return {
      functions: functions.filter((name) => !this.#functions.knows(name)),
      tables: tables.filter((name) => !this.#tables.has(name)),
      written: kind === 'work' ? tables.filter((name) => !this.#written.has(name)) : [],
    }
  }

  /**
   * True if the statement may write or lock although its text does not show it. Such a statement calls a volatile or unknown
   * function, or reads a view or a table with policies, which may call one.
   */
  mayWrite({ functions, tables }: Statement): boolean {
    return (
      functions.some((name) => this.#functions.mayWrite(name)) ||
      tables.some((name) => this.#tables.get(name))
    )
  }

  whyUnpredictable(functionName: string): string | undefined {
    return this.#functions.whyUnpredictable(functionName)
  }

  isBuiltIn(functionName: string): boolean {
    return this.#functions.isBuiltIn(functionName)
  }

  isUserCast(typeName: string): boolean {
    return this.#userCode?.casts.has(typeName) === true
  }

  isUserOperator(name: string): boolean {
    return this.#userCode?.operators.has(name) === true
  }

  table(name: string): TableInfo {
    return this.#tableInfo.get(name)
  }

  get settingsChanger(): string | undefined {
    return this.#functions.settingsChanger
  }

  /** True if a known function, trigger or view may write to tables that no statement names. */
  get hasHiddenWriters(): boolean {
    return this.#hasHiddenTables || this.#functions.hasHiddenWriters
  }

  /**
   * The known functions of the user that run several statements with no yield point between them, sorted:
   * `app.take(text)`. The explorer runs each as one step.
   */
  get atomicFunctions(): readonly string[] {
    return this.#functions.atomic
  }

  /** The known functions of Dibs that run as one step. The tests of Dibs check them. */
  get atomicFunctionsOfDibs(): readonly string[] {
    return this.#functions.atomicOfDibs
  }

  /** Schemas of Dibs with known functions. Schemas made for tests are left out, since their functions have yield points. */
  get dibsSchemas(): readonly string[] {
    return [...this.#functions.dibsSchemas].sort()
  }

  /** Forgets everything, since the schema was changed. */
  forget(): void {
    this.#functions.forget()
    this.#tableInfo.forget()
    this.#tables.clear()
    this.#written.clear()
    this.#userCode = undefined
    this.#hasHiddenCode = undefined
  }
}
