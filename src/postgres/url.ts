import { InvalidInputError } from '../errors.js'

const EXAMPLE = 'postgres://user:password@host:5432/database'

/** Refuses what `pg` would take for something else, such as a name without a scheme for a local database. */
export function parseUrl(url: unknown): string {
  if (url === undefined || url === '') {
    throw new InvalidInputError('url', `must be given, or the variable DATABASE_URL set, like ${EXAMPLE}`)
  }
  if (typeof url !== 'string')
    throw new InvalidInputError('url', `must be text like ${EXAMPLE}, not ${typeof url}`)
  let protocol: string
  try {
    protocol = new URL(url).protocol
  } catch (cause) {
    // The text itself may hold a password, so it is not repeated.
    throw new InvalidInputError('url', `is not a URL; it must look like ${EXAMPLE}`, { cause })
  }
  if (protocol !== 'postgres:' && protocol !== 'postgresql:') {
    throw new InvalidInputError('url', `must start with postgres://, not ${protocol}//`)
  }
  return url
}

/** Where a connection goes, without its password. */
export function describeUrl(url: string | undefined): string {
  if (!url) return 'the server of the given pool'
  try {
    const { username, host, pathname } = new URL(url)
    return `postgres://${username ? `${username}@` : ''}${host}${pathname}`
  } catch {
    return 'the server of the given pool'
  }
}
