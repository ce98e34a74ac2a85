import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { inject } from 'vitest'
import { quoteIdentifier } from '../src/postgres/identifier.js'

/** This run of the suite goes through PgBouncer in transaction mode. */
export const viaPgBouncer = process.env.DIBS_TEST_VIA === 'pgbouncer'

/** Straight to the server, also when the suite goes through PgBouncer. */
export const directUrl = findUrl()

/** Some projects run on another server than the usual one. */
function findUrl(): string {
  const name = process.env.DIBS_TEST_ON ?? 'usual'
  const found = inject('servers')[name]
  if (!found) throw new Error(`There is no server "${name}" in this run.`)
  return found
}

/** The way in that this run tests. */
export const url = viaPgBouncer ? (inject('pgBouncerUrl') ?? directUrl) : directUrl

/** The options of `Dibs.open` for the server under test, besides `url` or `pool`. Maintenance runs only where a test starts it. */
export const throughPool = { maintain: false, ...(viaPgBouncer ? { prepared: false, listen: false } : {}) }
export const wayIn = { url, ...throughPool }

/** A name that no other test has. */
export function freshName(prefix = 'test'): string {
  return `${prefix}_${randomBytes(6).toString('hex')}`
}

/** Runs with a pool that is gone afterwards. */
export async function withPool<T>(fn: (pool: pg.Pool) => Promise<T>, config: pg.PoolConfig = {}): Promise<T> {
  const pool = new pg.Pool({ connectionString: url, ...config })
  pool.on('error', () => {})
  try {
    return await fn(pool)
  } finally {
    await pool.end()
  }
}

/** Makes a role that may log in, and returns the way in as that role, straight to the server. */
export async function createRole(role: string, attributes = ''): Promise<string> {
  const { password } = new URL(directUrl)
  const secret = password ? ` password '${password}'` : ''
  await withPool((pool) => pool.query(`create role ${role} login ${attributes}${secret}`))
  const target = new URL(directUrl)
  target.username = role
  target.password = password
  return target.href
}

export async function dropSchema(schema: string): Promise<void> {
  await withPool((pool) => pool.query(`drop schema if exists ${quoteIdentifier(schema)} cascade`))
}

export { until } from './until.js'
