import { createHash } from 'node:crypto'
import { InvalidInputError } from '../errors.js'
import { keyOf } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'

type Part = string | number | bigint

export const pathOf = (target: string): string => target.split('?', 1)[0] as string

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
