import { InvalidInputError } from '../../errors.js'
import { checkLimit } from '../../options/check-amount.js'
import { nameGiven } from '../../options/name-given.js'
import { lifetime } from '../../options/number-options.js'
import { checked, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import type { Tx } from '../../postgres/executor.js'
import { toJson } from '../../postgres/json.js'
import { checkText, MAX_KEY_BYTES } from '../../postgres/key.js'
import { type PageOptions, pageOptions } from '../../postgres/page.js'

/** The path of a field: its name, or the names on the way to it through the objects around it. */
export type FieldPath = string | readonly string[]

export interface KvReadOptions {
  /** Your own open transaction, to read what it has written. */
  readonly tx?: Tx | undefined
}

export interface KvWriteOptions {
  /** How long the entry lives, by the database's clock. `Infinity` means forever. */
  readonly ttlMs?: number | undefined
  /** Your own open transaction. The write commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

export interface KvDeleteOptions {
  /** Delete only this version. */
  readonly ifVersion?: number | undefined
  /** Your own open transaction. The deletion commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

export interface KvPatchOptions extends KvWriteOptions {
  /** Fields to remove: names, or paths such as `['checks', 'risk']`. Removal comes first, so a removed field that is also given is replaced as a whole. */
  readonly remove?: readonly FieldPath[] | undefined
}

/** Selects the keys that `kv.list` returns. */
export interface KvFilter {
  /** Only keys that begin with this. Default: all. */
  readonly prefix?: string | undefined
}

export interface KvListOptions extends PageOptions {
  /** Your own open transaction, to read what it wrote. */
  readonly tx?: Tx | undefined
}

/** The maximum number of paths that `remove` takes. */
const MAX_PATHS = 1_000

/** PostgreSQL merges with a recursive function, and its stack is limited. This depth is well within that limit. */
const MAX_PATCH_DEPTH = 50

export const kvReadOptions = optionTable<KvReadOptions>()('dibs.kv.get, dibs.kv.getMany', { tx: unchecked() })

export const kvWriteOptions = optionTable<KvWriteOptions>()(
  'dibs.kv.set, dibs.kv.setIfAbsent, dibs.kv.compareAndSet',
  { ttlMs: lifetime(), tx: unchecked() },
)

export const kvDeleteOptions = optionTable<KvDeleteOptions>()('dibs.kv.delete', {
  ifVersion: checked(checkVersion, { bounds: 'the version of an entry' }),
  tx: unchecked(),
})

export const kvPatchOptions = optionTable<KvPatchOptions>()('dibs.kv.patch', {
  ...kvWriteOptions.fields,
  remove: checked<readonly FieldPath[]>(checkPaths, { default: [], bounds: `at most ${MAX_PATHS} paths` }),
})

export const kvFilter = optionTable<KvFilter>()('dibs.kv.list, filter', {
  prefix: checked(checkPrefix, { default: '', bounds: `at most ${MAX_KEY_BYTES} bytes` }),
})

export const kvListOptions = optionTable<KvListOptions>()('dibs.kv.list, page', {
  ...pageOptions.fields,
  tx: unchecked(),
})

export function checkVersion(field: string, version: unknown): string {
  return String(checkLimit(field, version))
}

/** Checks the fields of a patch. Returns them as JSON. */
export function checkFields(fields: unknown): string {
  const json = toJson('fields', fields)
  if (!json.startsWith('{'))
    throw new InvalidInputError('fields', `must be an object, not ${nameGiven(fields)}`)
  if (depthOf(JSON.parse(json)) > MAX_PATCH_DEPTH)
    throw new InvalidInputError('fields', `must not be objects nested deeper than ${MAX_PATCH_DEPTH} levels`)
  return json
}

/** How deep objects are nested in objects. Arrays do not count, because an array is replaced as a whole. */
function depthOf(value: unknown): number {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return 0
  // No spread: a value of one megabyte can have more fields than a call may have arguments.
  return 1 + Object.values(value).reduce<number>((deepest, inner) => Math.max(deepest, depthOf(inner)), 0)
}

/** Checks the paths of the fields to remove. Returns them as JSON: an array of names for each path. */
export function checkPaths(field: string, paths: unknown): string {
  if (!Array.isArray(paths) || paths.length > MAX_PATHS)
    throw new InvalidInputError(field, `must be an array of at most ${MAX_PATHS} field names and paths`)
  const lists = paths.map((path: unknown): readonly unknown[] => (Array.isArray(path) ? path : [path]))
  for (const names of lists) {
    if (names.length === 0) throw new InvalidInputError(field, 'must not hold an empty path')
    const wrong = names.find((name) => typeof name !== 'string')
    if (wrong !== undefined)
      throw new InvalidInputError(
        field,
        `must hold names of fields, which are strings, not ${nameGiven(wrong)}`,
      )
  }
  return toJson(field, lists)
}

function checkPrefix(field: string, prefix: unknown): void {
  if (Buffer.byteLength(checkText(field, prefix)) > MAX_KEY_BYTES)
    throw new InvalidInputError(field, `must be at most ${MAX_KEY_BYTES} bytes long, as keys are`)
}
