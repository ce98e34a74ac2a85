import { createHash } from 'node:crypto'
import { InvalidInputError } from '../errors.js'
import { keyOf } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'

type Part = string | number | bigint

export const pathOf = (target: string): string => target.split('?', 1)[0] as string

/** As long as Node lets all headers of a request be. */
const MAX_PATH = 16_384

/** Path and query after `normalizePath` of the application has seen the path. */
export function normalizeTarget(
  target: string,
  normalizePath: ((path: string) => string) | undefined,
): string {
  if (!normalizePath) return target
  const path = pathOf(target)
  const normal: unknown = normalizePath(path)
  if (typeof normal === 'string' && normal.length > 0 && normal.length <= MAX_PATH)
    return `${normal.replaceAll('?', '%3F')}${target.slice(path.length)}`
  const given =
    typeof normal !== 'string'
      ? nameGiven(normal)
      : normal === ''
        ? 'an empty string'
        : `a string of ${normal.length} characters`
  throw new InvalidInputError(
    'normalizePath',
    `must return a string of 1 to ${MAX_PATH} characters, not ${given}`,
  )
}

/** Whose keys, and what for. A path that is too long is told by its hash. */
export function scopeOf(principal: readonly Part[], method: string, path: string): string {
  const hash = () => createHash('sha256').update(path).digest('hex')
  try {
    return (
      tryKey('http', ...principal, `${method} ${path}`) ?? keyOf('http', ...principal, `${method} #${hash()}`)
    )
  } catch (error) {
    if (!(error instanceof InvalidInputError)) throw error
    throw new InvalidInputError('scope', error.message.replace(/^\S+ |\.$/g, ''))
  }
}

function tryKey(...parts: readonly Part[]): string | undefined {
  try {
    return keyOf(...parts)
  } catch {
    return undefined
  }
}

/** Somebody without a name must not be taken for everybody. */
export function readPrincipal(principal: unknown): readonly Part[] {
  const parts = Array.isArray(principal) ? principal : [principal]
  const isSaid = (part: unknown) => part !== undefined && part !== null && part !== ''
  if (parts.length > 0 && parts.every(isSaid)) return parts
  const name = (part: unknown) => (part === '' ? 'an empty text' : nameGiven(part))
  const said = Array.isArray(principal) ? `[${parts.map(name).join(', ')}]` : name(principal)
  throw new InvalidInputError(
    'scope',
    `must say for each request whose key it is, and said ${said}; refuse those who are not known before they come here`,
  )
}
