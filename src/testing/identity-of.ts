import { createHash } from 'node:crypto'

/** Options that may differ between a run and its replay. */
const INCIDENTAL = new Set([
  'pool',
  'url',
  'replay',
  'throws',
  'page',
  'patienceMs',
  'slowDeadlocks',
  'effects',
  'child',
])

/** The code under test. Only the names of its functions count, so that a replay survives an edit of their bodies. */
const UNDER_TEST = new Set(['actors', 'run', 'recover'])

/**
 * Tells one call of `explore` or `crashLoop` from the others, in six hex digits. Made from `name`, or else from the other
 * options: names of actors, plain values, and the source text of `setup`, `invariant` and the like.
 */
export function identityOf(options: { readonly name?: string | undefined }): string {
  const parts = Object.entries(options)
    .filter(([key, value]) => value !== undefined && !INCIDENTAL.has(key))
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, value]) => [key, UNDER_TEST.has(key) ? namesOf(value) : value])
  const text = JSON.stringify(options.name ?? parts, (_, value) =>
    typeof value === 'function' ? String(value) : value,
  )
  return createHash('sha256').update(text).digest('hex').slice(0, 6)
}

const namesOf = (code: unknown): unknown =>
  typeof code === 'function'
    ? code.name
    : Object.entries(code as object).map(([actor, fn]) => [actor, (fn as { name: string }).name])
