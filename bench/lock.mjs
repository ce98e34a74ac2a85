// Cost of an uncontended lock: take and release, guard a transaction, and the same with many other locks in the table.
import pg from 'pg'
import { Dibs } from '../dist/index.js'
import { moveAway } from './distance.mjs'
import { LockProcesses, PROCESSES } from './lock-processes.mjs'
import { openLockers } from './lockers.mjs'
import { startRedis } from './redis.mjs'

const IN_FLIGHT = 24
/** Lock names per caller. Callers share no names. */
const NAMES = 40
const ROWS = [1, 10_000, 1_000_000]

const nameOf = (who) => `bench:${who}:${Math.floor(Math.random() * NAMES)}`

const lockAndRelease = (locker) => async (who) => {
  const lock = await locker(nameOf(who))
  await lock.release()
}

/** `contestants` of some of the lockers, as far as they are there; the first is the yardstick. */
const some = (lockers, names, contestant) =>
  Object.fromEntries(
    names.filter((name) => lockers[name]).map((name) => [name, contestant(lockers[name], name)]),
  )

const names = ['lease row by hand', 'dibs.lock', 'redlock 5, one Redis']

export async function lockContest(url) {
  const redis = await startRedis()
  if (!redis) console.error('there is no redis-server here: redlock is left out')
  const { lockers, pool, dibs, close } = await openLockers(url, redis?.url, IN_FLIGHT)
  const processes = new LockProcesses(url, redis?.url)
  const contests = [
    {
      name: 'lock: take and give back',
      inFlight: 1,
      contestants: some(lockers, [...names, 'advisory lock in a transaction'], lockAndRelease),
    },
    {
      name: 'lock: take and give back, names of their own',
      inFlight: IN_FLIGHT,
      contestants: some(lockers, names, lockAndRelease),
    },
    {
      name: `lock: take and give back, names of their own, ${PROCESSES} processes`,
      inFlight: IN_FLIGHT,
      measures: true,
      before: () => processes.open(),
      after: () => processes.close(),
      contestants: some(lockers, names, (_, name) => (ms) => processes.spread(name, IN_FLIGHT, ms)),
    },
    ...(await guarded(pool, dibs)),
    among(url),
  ]
  return {
    contests,
    async close() {
      await close()
      await redis?.stop()
    },
  }
}

/** Runs the first contest with servers 2 ms away, where each round trip is expensive. */
export async function distantLockContest(url) {
  const redis = await startRedis()
  const away = await moveAway(url)
  const redisAway = redis && (await moveAway(redis.url))
  const { lockers, close } = await openLockers(away.url, redisAway?.url.replace(/\/$/, ''), IN_FLIGHT)
  return {
    contests: [
      {
        name: 'lock: take and give back, servers 2 ms away',
        inFlight: 1,
        contestants: some(lockers, names, lockAndRelease),
      },
    ],
    async close() {
      await close()
      await away.close()
      await redisAway?.close()
      await redis?.stop()
    },
  }
}

/** A transaction that is tied to a lock, over the same without: one lock for each who is in flight, and one for all. */
async function guarded(pool, dibs) {
  await pool.query(`create table if not exists lock_counter (id int primary key, n bigint not null);
    insert into lock_counter select g, 0 from generate_series(1, 1000) g on conflict do nothing`)
  const increment = (tx) =>
    tx.query('update lock_counter set n = n + 1 where id = $1', [1 + Math.floor(Math.random() * 1000)])
  const held = new Map()
  const guard = (nameOfLock) => (who) =>
    dibs.transaction(async (tx) => {
      await held.get(nameOfLock(who)).guard(tx)
      await increment(tx)
    })
  const own = (who) => `guard:${who % IN_FLIGHT}`
  return [1, IN_FLIGHT].map((inFlight) => ({
    name: 'lock: guard a transaction of one update',
    inFlight,
    async before() {
      const all = ['guard', ...Array.from({ length: IN_FLIGHT }, (_, who) => own(who))]
      for (const name of all) held.set(name, await dibs.lock(name))
    },
    async after() {
      for (const lock of held.values())
        if ((await lock.release()) !== 'released') throw new Error('it was lost')
    },
    contestants: {
      'without it': () => dibs.transaction(increment),
      'guarded, each by its own': guard(own),
      ...(inFlight > 1 && { 'guarded, all by one': guard(() => 'guard') }),
    },
  }))
}

/** Beside so many others in the table. */
function among(url) {
  const pools = []
  const instances = new Map()
  const schemaOf = (rows) => `dibs_lock_${rows}`
  return {
    name: 'lock: take and give back, among so many rows',
    inFlight: 1,
    async before() {
      for (const rows of ROWS) {
        const pool = new pg.Pool({ connectionString: url, max: 2 })
        pool.on('error', () => {})
        pools.push(pool)
        const schema = schemaOf(rows)
        instances.set(rows, await Dibs.open({ pool, schema, listen: false }))
        await pool.query(`insert into ${schema}.lock (name, permit, holder, fence, expires_at, acquired_at)
          select 'row:' || g, 0, 'host:1/' || gen_random_uuid(), 1, '-infinity', now() from generate_series(1, ${rows}) g`)
        await pool.query(`vacuum (analyze) ${schema}.lock`)
        await pool.query('checkpoint')
      }
    },
    async after() {
      for (const dibs of instances.values()) await dibs.close()
      for (const rows of ROWS) await pools[0].query(`drop schema ${schemaOf(rows)} cascade`)
      for (const pool of pools) await pool.end()
    },
    contestants: Object.fromEntries(
      ROWS.map((rows) => [
        rows.toLocaleString('en'),
        async () => {
          const lock = await instances.get(rows).lock(`row:${1 + Math.floor(Math.random() * rows)}`)
          await lock.release()
        },
      ]),
    ),
  }
}
