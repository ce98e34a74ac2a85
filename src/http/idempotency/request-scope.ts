import { createHash } from 'node:crypto'
import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { keyOf } from '../../postgres/key.js'

type Part = string | number | bigint

export const pathOf = (target: string): string => target.split('?', 1)[0] as string

/** Node's default limit for all headers of a request. */
const MAX_PATH = 16_384

/** Path and query, with the path normalized by the application's function. */
export function normalizeTarget(
  target: string,
  normalizePath: ((path: string) => string) | undefined,
): string {
  if (!normalizePath) return target
  const path = pathOf(target)
  const normal: unknown = normalizePath(path)
  if (typeof normal === 'string' && normal.length > 0 && normal.length <= MAX_PATH)
    return `${normal.replaceAll('?', '%3F')}${target.slice(path.length)}`
  const given = typeof normal === 'string' ? `a string of ${normal.length} characters` : nameGiven(normal)
  throw new InvalidInputError(
    'normalizePath',
    `must return a string of 1 to ${MAX_PATH} characters, not ${given}`,
  )
}

/** The scope of a key: its owner and the route. A path that is too long for a scope is replaced by its hash. */
export function requestScope(owner: readonly Part[], method: string, path: string): string {
  try {
    return keyOf('http', ...owner, `${method} ${path}`) // guard: http.scope-owner
  } catch {
    const hash = createHash('sha256').update(path).digest('hex')
    try {
      return keyOf('http', ...owner, `${method} #${hash}`)
    } catch (error) {
      if (!(error instanceof InvalidInputError)) throw error
      throw new InvalidInputError('scope', error.message.replace(/^\S+ |\.$/g, ''))
    }
  }
}

/** Reads the result of the option `scope`. All requests without an owner would share their keys, so they are refused. */
export function readOwner(owner: unknown): readonly Part[] {
  const parts = Array.isArray(owner) ? owner : [owner]
  const isNamed = (part: unknown) => part !== undefined && part !== null && part !== ''
  if (parts.length > 0 && parts.every(isNamed)) return parts // guard: http.named-owner
  const show = (part: unknown) => (part === '' ? 'an empty string' : nameGiven(part))
  const given = Array.isArray(owner) ? `[${parts.map(show).join(', ')}]` : show(owner)
  throw new InvalidInputError(
    'scope',
    `must return the owner of the key for each request, not ${given}. Refuse unknown clients before the middleware`,
  )
}
