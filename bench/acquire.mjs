// Cost of acquiring four claims in one call, compared with four in turn in a hand-written transaction.
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { claim, Dibs } from '../dist/index.js'
import { moveAway } from './distance.mjs'

/** Runs these contests with a server 2 ms away, where each round trip is expensive. */
export async function distantAcquireContest(url) {
  const away = await moveAway(url)
  const { contests, close } = await acquireContest(away.url)
  return {
    contests: contests.map((contest) => ({ ...contest, name: `${contest.name}, server 2 ms away` })),
    async close() {
      await close()
      await away.close()
    },
  }
}

export async function acquireContest(url) {
  const pool = new pg.Pool({ connectionString: url, max: 24 })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool, listen: false })
  await pool.query(`
    create table if not exists hand_claim (scope text, key text, status text not null, outcome jsonb, primary key (scope, key));
    create table if not exists hand_quota (name text, day date, used int not null, primary key (name, day));
    create table if not exists hand_lock (name text primary key, holder text not null, until timestamptz not null)`)
  const points = dibs.quota('bench-points', { limit: 1_000_000_000, per: 'day' })
  const subject = () => `subject-${Math.floor(Math.random() * 1000)}`

  const insert = `insert into hand_claim (scope, key, status) values ($1, $2, 'pending') on conflict do nothing returning key`
  const finish = `update hand_claim set status = 'active', outcome = $3 where scope = $1 and key = $2`

  /** As a careful engineer writes it: everything in one transaction, each statement by its name. */
  async function byHand() {
    const key = randomUUID()
    const who = subject()
    const client = await pool.connect()
    const ask = (name, text, values) => client.query({ name, text, values })
    try {
      await client.query('begin')
      const own = await ask('claim', insert, ['once', key])
      const slot = await ask('claim', insert, [`slot:${who}`, key])
      const quota = await ask(
        'quota',
        `insert into hand_quota values ($1, current_date, 1) on conflict (name, day)
         do update set used = hand_quota.used + 1 where hand_quota.used < 1000000000 returning used`,
        [who],
      )
      const lock = await ask(
        'lock',
        `insert into hand_lock values ($1, $2, now() + interval '30 s') on conflict (name)
         do update set holder = $2, until = now() + interval '30 s' where hand_lock.until <= now() returning name`,
        [key, key],
      )
      if (!own.rowCount || !slot.rowCount || !quota.rowCount || !lock.rowCount) throw new Error('refused')
      await ask('finish', finish, ['once', key, '1'])
      await ask('finish', finish, [`slot:${who}`, key, '1'])
      await ask('unlock', 'update hand_lock set until = now() where name = $1 and holder = $1', [key])
      await client.query('commit')
    } catch (error) {
      await client.query('rollback')
      throw error
    } finally {
      client.release()
    }
  }

  const acquire = () => {
    const key = randomUUID()
    const who = subject()
    return dibs.acquire(
      [
        claim.once({ scope: 'bench', key }),
        claim.singleton({ scope: ['bench', who, key], per: 'day' }),
        points.claim(who),
        claim.lock(key),
      ],
      { waitMs: 5_000 },
      async () => 1,
    )
  }

  return {
    contests: [1, 24].map((inFlight) => ({
      name: inFlight === 1 ? 'acquire of four' : `acquire of four, ${inFlight} in flight`,
      inFlight,
      contestants: { 'by hand, one after the other': byHand, 'dibs.acquire': acquire },
    })),
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}
