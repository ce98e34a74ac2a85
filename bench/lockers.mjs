// The lockers by name: `(name) => Promise<{ fence?, release }>`. Each locker waits until it holds the lock.
import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'
import pg from 'pg'
import Redlock from 'redlock'
import { Dibs } from '../dist/index.js'

/** The guarantees of each contestant, printed beside its figures. */
export const promises =
  'What each promises. Redis: work is seldom done twice; the lock is gone with the memory of its server, or its failover, and has no number ' +
  'that a late holder could be told by. Lease row by hand: durable, and has none either. dibs.lock: a lease with a fence that only grows, which ' +
  'a transaction can guard itself by; each take is a durable commit (a release that a crash takes away is a lease that runs out). Advisory lock: holds a connection for as long, ends ' +
  'with it, and writes nothing.'

const TTL_MS = 30_000
/** Longer than any round. */
const WAIT_MS = 120_000

/** The settings from the documentation of Redlock, except `retryCount`: each caller waits for the lock. */
const redlockSettings = { driftFactor: 0.01, retryCount: 100_000, retryDelay: 200, retryJitter: 200 }

const take = {
  name: 'lease-take',
  text: `insert into hand_lease as l (name, holder, until) values ($1, $2, clock_timestamp() + interval '30 s') on conflict (name)
         do update set holder = excluded.holder, until = excluded.until where l.until <= clock_timestamp() returning name`,
}
const giveBack = {
  name: 'lease-give-back',
  text: `update hand_lease set until = '-infinity' where name = $1 and holder = $2`,
}
const advisory = {
  name: 'advisory',
  text: 'select pg_advisory_xact_lock(hashtextextended($1, 0))',
}

export async function openLockers(url, redisUrl, max) {
  const pool = new pg.Pool({ connectionString: url, max })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool })
  const polling = await Dibs.open({ pool, listen: false })
  await pool
    .query(
      'create table if not exists hand_lease (name text primary key, holder text not null, until timestamptz not null)',
    )
    .catch((error) => (error.code === '23505' ? undefined : Promise.reject(error))) // another process was first
  const redis = redisUrl && new Redis(redisUrl)
  redis?.on('error', () => {})
  const redlock = redis && new Redlock([redis], redlockSettings)
  redlock?.on('error', () => {}) // each try that finds it taken

  async function byHand(name) {
    const holder = randomUUID()
    const { rowCount } = await pool.query({ ...take, values: [name, holder] })
    if (rowCount !== 1) throw new Error(`${name} is taken`)
    return { release: () => pool.query({ ...giveBack, values: [name, holder] }) }
  }

  async function inTransaction(name) {
    const client = await pool.connect()
    await client.query('begin')
    await client.query({ ...advisory, values: [name] })
    return {
      async release() {
        await client.query('commit')
        client.release()
      },
    }
  }

  const options = { leaseMs: TTL_MS, waitMs: WAIT_MS }
  return {
    pool,
    dibs,
    lockers: {
      'lease row by hand': byHand,
      'dibs.lock': (name) => dibs.lock(name, options),
      'dibs.lock, listen: false': (name) => polling.lock(name, options),
      ...(redlock && { 'redlock 5, one Redis': (name) => redlock.acquire([name], TTL_MS) }),
      'advisory lock in a transaction': inTransaction,
    },
    async close() {
      await dibs.close()
      await polling.close()
      await pool.end()
      redis?.disconnect()
    },
  }
}
