// The takers by name: `(key) => Promise`. Every take of `openTakers` is granted, so each one writes.
import pg from 'pg'
import { RateLimiterPostgres } from 'rate-limiter-flexible'
import { Dibs } from '../dist/index.js'

const LIMIT = 1_000_000_000
const PER_MS = 60_000

/** The first is the yardstick. */
export async function openTakers(url, max) {
  const pool = new pg.Pool({ connectionString: url, max })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool, listen: false })
  const peer = await openPeer(pool)
  const window = dibs.rateLimit('bench', { algorithm: 'fixed-window', limit: LIMIT, perMs: PER_MS })
  const bucket = dibs.rateLimit('bench', { algorithm: 'token-bucket', limit: LIMIT, perMs: PER_MS })
  const quota = dibs.quota('bench', { limit: LIMIT, per: 'day', timeZone: 'Europe/Berlin' })
  const listed = dibs.quota('bench-listed', { limit: LIMIT, per: 'day', ledger: true })
  return {
    takers: {
      'rate-limiter-flexible, PostgreSQL': (key) => peer.consume(key, 1),
      'dibs.quota': (key) => quota.take(key),
      'dibs.quota, every take listed': (key) => listed.take(key),
      'dibs.rateLimit, fixed-window': (key) => window.take(key),
      'dibs.rateLimit, token-bucket': (key) => bucket.take(key),
    },
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}

/** Takers whose limit is used up: the cost of a refused take. */
export async function openRefused(url, max) {
  const pool = new pg.Pool({ connectionString: url, max })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ pool, listen: false })
  const peer = await openPeer(pool, 1, 3_600)
  const window = dibs.rateLimit('bench-full', { algorithm: 'token-bucket', limit: 1, perMs: 3_600_000 })
  const quota = dibs.quota('bench-full', { limit: 1 })
  const refused = async (take) => {
    await take().catch(() => {})
    return () =>
      take().then(
        () => Promise.reject(new Error('was granted')),
        () => {},
      )
  }
  return {
    takers: {
      'rate-limiter-flexible, PostgreSQL': await refused(() => peer.consume('full', 1)),
      'dibs.quota': await refused(() => quota.take('full')),
      'dibs.rateLimit, token-bucket': await refused(() => window.take('full')),
    },
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}

/** Its fixed windows begin with the first hit. */
function openPeer(pool, points = LIMIT, duration = PER_MS / 1000) {
  return new Promise((resolve, reject) => {
    const peer = new RateLimiterPostgres(
      {
        storeClient: pool,
        storeType: 'pool',
        tableName: `rate_limiter_flexible_${points}`,
        points,
        duration,
        clearExpiredByTimeout: false,
      },
      (error) => (error ? reject(error) : resolve(peer)),
    )
  })
}

/** Takes from one of so many keys, again and again; returns how often a second. */
export async function takeFor(ms, take, keys, inFlight) {
  const startedAt = performance.now()
  const until = startedAt + ms
  let done = 0
  const loop = async () => {
    while (performance.now() < until) {
      await take(keyOf(keys))
      done++
    }
  }
  await Promise.all(Array.from({ length: inFlight }, loop))
  return (done * 1000) / (performance.now() - startedAt)
}

export const keyOf = (keys) => `key:${Math.floor(Math.random() * keys)}`
