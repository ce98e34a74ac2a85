import { InvalidInputError } from '../errors.js'
import { hasMethods, nameGiven } from '../postgres/name-given.js'

/** The headers of a request, as any framework has them: `Headers`, those of Node, or what has a `get`, such as a request of Express. */
export type RequestHeaders =
  | { get(name: string): string | null | undefined }
  | Readonly<Record<string, string | readonly string[] | undefined>>

/** One header, its values joined as HTTP joins them. `name` in lower case. */
export function readHeader(headers: RequestHeaders, name: string): string | undefined {
  if (hasMethods(headers, 'get')) return (headers as Headers).get(name) ?? undefined
  // A request has no header of any name, and a write would go through that nobody has checked.
  if (typeof headers !== 'object' || headers === null || typeof Reflect.get(headers, 'headers') === 'object')
    throw new InvalidInputError(
      'headers',
      `must be the headers of a request, not ${nameGiven(headers)}: give \`request.headers\``,
    )
  const found = Object.entries(headers).find(([given]) => given.toLowerCase() === name)?.[1]
  return found === undefined || typeof found === 'string' ? found : found.join(', ')
}
