// Cost of dibs.once and dibs.kv, compared with the same statements written by hand on tables of the same shape.
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { Dibs } from '../dist/index.js'
import { moveAway } from './distance.mjs'

/** Runs these contests with a server 2 ms away, where each round trip is expensive. */
export async function distantOnceContest(url) {
  const away = await moveAway(url)
  const { contests, close } = await onceContest(away.url)
  return {
    contests: contests
      .filter(({ name, inFlight }) => name.startsWith('once') && inFlight === 1)
      .map((contest) => ({ ...contest, name: `${contest.name}, server 2 ms away` })),
    async close() {
      await close()
      await away.close()
    },
  }
}

export async function onceContest(url) {
  const pool = new pg.Pool({ connectionString: url, max: 24 })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool, listen: false })
  await pool.query(`
    create table if not exists by_hand (
      scope text not null, key text not null, fingerprint text, status text not null, response jsonb, expires_at timestamptz,
      primary key (scope, key));
    create index if not exists by_hand_expires on by_hand (expires_at);
    create table if not exists counter (id int primary key, n bigint not null);
    insert into counter select g, 0 from generate_series(1, 1000) g on conflict do nothing`)
  const increment = (executor) =>
    executor.query('update counter set n = n + 1 where id = $1', [1 + Math.floor(Math.random() * 1000)])

  const claim = {
    name: 'claim',
    text: `insert into by_hand (scope, key, fingerprint, status, expires_at) values ('s', $1, $2, 'pending', now() + interval '1 day')
           on conflict do nothing returning key`,
  }
  const read = {
    name: 'read',
    text: "select status, fingerprint, response from by_hand where scope = 's' and key = $1",
  }
  const finish = {
    name: 'finish',
    text: "update by_hand set status = 'active', response = $2 where scope = 's' and key = $1",
  }

  /** As a careful engineer writes it: claim first, in the same transaction, and read only if somebody was first. */
  async function byHand(key, work = increment) {
    const client = await pool.connect()
    try {
      await client.query('begin')
      const { rowCount } = await client.query({ ...claim, values: [key, 'f'] })
      if (rowCount === 0) {
        const { rows } = await client.query({ ...read, values: [key] })
        await client.query('commit')
        return rows[0].response
      }
      await work(client)
      await client.query({ ...finish, values: [key, JSON.stringify({ ok: true })] })
      await client.query('commit')
      return { ok: true }
    } catch (error) {
      await client.query('rollback')
      throw error
    } finally {
      client.release()
    }
  }

  const once = (key, work = increment) =>
    dibs.once({ scope: 's', key, fingerprint: 'f' }, async (tx) => {
      await work(tx)
      return { ok: true }
    })

  async function inTransaction(fn) {
    const client = await pool.connect()
    try {
      await client.query('begin')
      await fn(client)
      await client.query('commit')
    } finally {
      client.release()
    }
  }

  await byHand('known')
  await once('known')
  await dibs.kv.set('known', { n: 1 })
  await pool.query(
    `create table if not exists by_hand_kv (key text primary key, value jsonb not null, version int not null default 1)`,
  )
  await pool.query(`insert into by_hand_kv values ('known', '{"n": 1}') on conflict do nothing`)
  const put = {
    name: 'put',
    text: 'insert into by_hand_kv values ($1, $2) on conflict do nothing returning version',
  }
  const get = { name: 'get', text: 'select value, version from by_hand_kv where key = $1' }

  const contests = [1, 24].flatMap((inFlight) => [
    {
      name: 'once: new key, one update',
      inFlight,
      contestants: {
        'by hand, named statements': () => byHand(randomUUID()),
        'dibs.once': () => once(randomUUID()),
      },
    },
    {
      name: 'once: replay',
      inFlight,
      contestants: { 'by hand, named statements': () => byHand('known'), 'dibs.once': () => once('known') },
    },
    {
      name: "once: in the caller's transaction",
      inFlight,
      contestants: {
        'by hand, named statements': () => {
          const key = randomUUID()
          return inTransaction(async (tx) => {
            await tx.query({ ...claim, values: [key, 'f'] })
            await increment(tx)
            await tx.query({ ...finish, values: [key, '{"ok":true}'] })
          })
        },
        'dibs.once({ tx })': () =>
          inTransaction((tx) =>
            dibs.once({ scope: 's', key: randomUUID(), fingerprint: 'f', tx }, () =>
              increment(tx).then(() => ({ ok: true })),
            ),
          ),
      },
    },
    {
      name: 'once: leased, no work',
      inFlight,
      contestants: {
        'by hand, two statements': async () => {
          const key = randomUUID()
          await pool.query({ ...claim, values: [key, 'f'] })
          await pool.query({ ...finish, values: [key, '{"ok":true}'] })
        },
        "dibs.once, mode: 'leased'": () =>
          dibs.once({ scope: 's', key: randomUUID(), fingerprint: 'f', mode: 'leased' }, async () => ({
            ok: true,
          })),
      },
    },
    {
      name: 'kv: setIfAbsent, new key',
      inFlight,
      contestants: {
        'by hand, named': () => pool.query({ ...put, values: [randomUUID(), '{"n": 1}'] }),
        'dibs.kv.setIfAbsent': () => dibs.kv.setIfAbsent(randomUUID(), { n: 1 }),
      },
    },
    {
      name: 'kv: setIfAbsent, lost, with the value',
      inFlight,
      contestants: {
        'by hand, two statements': async () => {
          await pool.query({ ...put, values: ['known', '{"n": 1}'] })
          await pool.query({ ...get, values: ['known'] })
        },
        'dibs.kv.setIfAbsent': () => dibs.kv.setIfAbsent('known', { n: 1 }),
      },
    },
    {
      name: 'kv: get',
      inFlight,
      contestants: {
        'by hand, named': () => pool.query({ ...get, values: ['known'] }),
        'dibs.kv.get': () => dibs.kv.get('known'),
      },
    },
  ])
  return {
    contests,
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}
