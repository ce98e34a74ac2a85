import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'

const originOf = (url: string): string =>
  url === process.env.DATABASE_URL ? ' (it comes from the environment variable DATABASE_URL)' : ''

const EXAMPLE = 'postgres://user:password@host:5432/database'

/** Refuses strings that `pg` would misread: it takes a name without a scheme for a local database. */
export function parseUrl(url: unknown): string {
  if (url === '') {
    throw new InvalidInputError(
      'url',
      `is empty. Give one like ${EXAMPLE}, or leave it out and unset the variable DATABASE_URL`,
    )
  }
  if (typeof url !== 'string')
    throw new InvalidInputError('url', `must be a string like ${EXAMPLE}, not ${nameGiven(url)}`)
  // The message repeats no part of the URL and not the error of `URL`: both may hold a password.
  if (!URL.canParse(url)) {
    throw new InvalidInputError(
      'url',
      `is not a URL${originOf(url)}. It must look like ${EXAMPLE}, with special characters escaped`,
    )
  }
  const { protocol, hash } = new URL(url)
  if (hash) throw new InvalidInputError('url', 'has a # in it, which must be escaped as %23')
  if (protocol !== 'postgres:' && protocol !== 'postgresql:') {
    throw new InvalidInputError('url', `must start with postgres://, not ${protocol}//${originOf(url)}`)
  }
  return url
}

/** The address of a connection, without its password. */
export function describeUrl(url: string | undefined): string {
  if (!url) return 'the server of the given pool'
  try {
    const { username, host, pathname } = new URL(url)
    return `postgres://${username ? `${username}@` : ''}${host}${pathname}`
  } catch {
    return 'the server of the given pool'
  }
}
