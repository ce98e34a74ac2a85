import { InvalidInputError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'

/** The headers of a request: `Headers`, those of Node, or an object with a `get`, such as a request of Express. */
export type RequestHeaders =
  | { get(name: string): string | null | undefined }
  | Readonly<Record<string, string | readonly string[] | undefined>>

/** Returns one header, with several values joined by commas. `name` is in lower case. */
export function readHeader(headers: RequestHeaders, name: string): string | undefined {
  if (hasMethods(headers, 'get')) return (headers as Headers).get(name) ?? undefined
  // A request in place of its headers would look as if it had no headers, and an unchecked write would go through.
  if (typeof headers !== 'object' || headers === null || typeof Reflect.get(headers, 'headers') === 'object')
    throw new InvalidInputError(
      'headers',
      `must be the headers of a request, not ${nameGiven(headers)}. Pass \`request.headers\``,
    )
  const found = Object.entries(headers).find(([header]) => header.toLowerCase() === name)?.[1]
  return found === undefined || typeof found === 'string' ? found : found.join(', ')
}
