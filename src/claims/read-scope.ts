import { InvalidInputError } from '../errors.js'
import { checkKey, keyOf } from '../postgres/key.js'

/** A scope as callers give it. */
export type Scope = string | readonly (string | number | bigint)[]

/** Checks a scope, and joins its parts. Scopes of Dibs itself begin with an empty first part, which no caller can name. */
export function readScope(scope: unknown): string {
  if (!Array.isArray(scope)) {
    const text = checkKey('scope', scope)
    if (text.startsWith(':')) throw new InvalidInputError('scope', 'must not begin with ":"')
    return text
  }
  try {
    return keyOf(...scope)
  } catch (error) {
    if (!(error instanceof InvalidInputError)) throw error
    throw new InvalidInputError('scope', error.message.replace(/^\S+ |\.$/g, ''))
  }
}
