import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { inject } from 'vitest'
import { quoteIdentifier } from '../src/postgres/identifier.js'

/** This run of the suite goes through PgBouncer in transaction mode. */
export const viaPgBouncer = process.env.DIBS_TEST_VIA === 'pgbouncer'

/** Straight to the server, also when the suite goes through PgBouncer. */
export const directUrl = inject('directUrl')

/** The way in that this run tests. */
export const url = viaPgBouncer ? (inject('pgBouncerUrl') ?? directUrl) : directUrl

/** What `Dibs.open` needs to know about the way in, with `url` or with a `pool`. */
export const throughPool = viaPgBouncer ? { prepared: false, listen: false } : {}
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

export async function dropSchema(schema: string): Promise<void> {
  await withPool((pool) => pool.query(`drop schema if exists ${quoteIdentifier(schema)} cascade`))
}

/** Polls until `probe` answers something other than undefined or false; fails after a bound. */
export async function until<T>(
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  what: string,
): Promise<T> {
  const deadline = Date.now() + 10_000
  for (;;) {
    const found = await probe()
    if (found !== undefined && found !== false) return found
    if (Date.now() > deadline) throw new Error(`Waited 10 s in vain: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}
