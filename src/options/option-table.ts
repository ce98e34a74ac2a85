/**
 * The options of a call as one table. The run-time checks, the defaults and `docs/defaults.md` come from it.
 *
 * ```ts
 * export const lockOptions = optionTable<LockOptions>()('dibs.lock', {
 *   leaseMs: duration({ default: 30_000, min: 50, max: DAY_MS }),
 *   ifDown: oneOf(['fail', 'allow'], { default: 'fail' }),
 *   holder: checked(checkKey, { bounds: 'at most 512 bytes' }),
 *   onLost: func(),
 *   tx: unchecked(),
 *   table: required(string()),
 * })
 * const { leaseMs, onLost } = lockOptions.read(options) // number, (() => void) | undefined
 * ```
 *
 * How to write a table:
 *
 * - The compiler refuses a table that lacks a field of the interface, has another one, or checks for another type. A field
 *   that the interface requires needs `required(…)`.
 * - `read` refuses unknown names, checks each value and fills in the defaults. It never changes a value. Only `undefined`
 *   counts as left out. Rules between options (`deadlineMs` excludes `tx`) stay in code after `read`.
 * - The kinds are in `number-options.ts` (`duration`, `lifetime`, `wholeNumber`, `number`), `value-options.ts` (`boolean`,
 *   `oneOf`, `string`, `stringList`, `date`, `func`, `instance`, `abortSignal`) and `option.ts` (`checked` for a check of your own, `unchecked`).
 *   `fromClient: true` makes a refusal a 400.
 * - Nested options have a table of their own: `checked((field, value) => retryOptions.read(value, field))`. The field of a
 *   refusal is then a path: `email.retry.baseMs`.
 * - `{ ...lockOptions.fields, waitMs: … }` extends a table.
 * - Positional arguments use the plain checks of this folder: `checkFunction('fn', fn)`.
 *
 * How to make the page complete: export the table as a constant. The page takes types and descriptions from the
 * doc comments of the interface. A doc comment names the default of its table as `Default 30,000.` or as `` `fail` (default) ``.
 * A default that depends on something else has no entry in the table, and the comment says `Default: the limit of the quota.`
 */
import { InvalidInputError } from '../errors.js'
import { readNames, refuseName } from './check-options.js'
import type { Option, OptionFor } from './option.js'

/** For each field of the public interface, its option. */
export type FieldsOf<O> = { readonly [K in keyof O]-?: OptionFor<O[K]> }

/** The result of `read`: an option with a default, or a required one, is never undefined. */
export type ReadOptions<O, F> = {
  readonly [K in keyof F]: K extends keyof O
    ? F[K] extends { readonly default: unknown }
      ? Exclude<O[K], undefined>
      : O[K]
    : never
}

export interface TableSettings {
  /** Names that a caller may expect, but that the call refuses, with the reason: `{ tx: 'is no option here: …' }`. */
  readonly refused?: Readonly<Record<string, string>>
}

/** @param title the calls that have these options, as the reference page names them: `dibs.lock, dibs.withLock` */
export const optionTable =
  <O extends object>() =>
  <const F extends FieldsOf<O>>(
    title: string,
    fields: F & { readonly [K in Exclude<keyof F, keyof O>]: never },
    settings: TableSettings = {},
  ): OptionTable<O, F> =>
    new OptionTable<O, F>(title, fields, settings)

export class OptionTable<O extends object, F> {
  readonly title: string
  readonly fields: F
  readonly #options: ReadonlyMap<string, Option<unknown>>
  readonly #required: readonly string[]
  /** Every option with its default, as the start of each result: one shape for all of them. */
  readonly #defaults: Record<string, unknown> = {}
  readonly #refused: Readonly<Record<string, string>>

  constructor(title: string, fields: F, { refused = {} }: TableSettings) {
    this.title = title
    this.fields = fields
    this.#options = new Map(Object.entries(fields as Record<string, Option<unknown>>))
    this.#required = this.names.filter((name) => this.#options.get(name)?.isRequired)
    for (const [name, option] of this.#options) this.#defaults[name] = Reflect.get(option, 'default')
    this.#refused = refused
  }

  get names(): readonly string[] {
    return [...this.#options.keys()]
  }

  /**
   * Refuses unknown names, checks the values and fills in the defaults. Calls on hot paths do this, so the time depends on the
   * options that were given, not on those that exist: about 0.1 µs.
   *
   * @param of whose options they are, if that is not clear: `email`
   */
  read(options: O | undefined, of?: string): ReadOptions<O, F> {
    const values = { ...this.#defaults }
    if (options !== undefined || this.#required.length > 0) {
      const own = readNames(options, of)
      for (const name of own) if (!this.#options.has(name)) this.#refuse(options, name, of)
      const isPlain = Object.getPrototypeOf(options) === Object.prototype
      for (const name of isPlain ? own : this.#options.keys()) {
        const value: unknown = (options as Record<string, unknown>)[name]
        if (value === undefined) continue
        this.#options.get(name)?.check(of === undefined ? name : `${of}.${name}`, value)
        values[name] = value
      }
      for (const name of this.#required)
        if (values[name] === undefined)
          this.#options.get(name)?.check(of === undefined ? name : `${of}.${name}`, undefined)
    }
    return values as ReadOptions<O, F>
  }

  #refuse(options: unknown, name: string, of: string | undefined): never {
    const reason = Object.hasOwn(this.#refused, name) ? this.#refused[name] : undefined
    if (reason !== undefined) throw new InvalidInputError(of === undefined ? name : `${of}.${name}`, reason)
    throw refuseName(options, name, this.names, of)
  }
}
