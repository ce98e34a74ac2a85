// Cost of dibs.transaction over hand-written BEGIN and COMMIT, and of one of our statements over pool.query.
import pg from 'pg'
import { Dibs } from '../dist/index.js'

export async function transactionContest(url) {
  const pool = new pg.Pool({ connectionString: url, max: 24 })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool, listen: false })
  const unnamed = await Dibs.open({ pool, listen: false, prepared: false })
  await pool.query(
    'create table if not exists counter (id int primary key, n bigint not null); insert into counter select g, 0 from generate_series(1, 1000) g on conflict do nothing',
  )
  const increment = (executor) =>
    executor.query('update counter set n = n + 1 where id = $1', [1 + Math.floor(Math.random() * 1000)])

  async function byHand() {
    const client = await pool.connect()
    try {
      await client.query('begin')
      await increment(client)
      await client.query('commit')
    } catch (error) {
      await client.query('rollback')
      throw error
    } finally {
      client.release()
    }
  }

  const clock = 'select (extract(epoch from dibs.clock()) * 1000000)::bigint::text as "micros"'
  const contests = [1, 24].flatMap((inFlight) => [
    {
      name: 'one update in a transaction',
      inFlight,
      contestants: {
        'pg by hand': byHand,
        'dibs.transaction': () => dibs.transaction(increment),
        'dibs.transaction, no deadline': () =>
          dibs.transaction(increment, { deadlineMs: Number.POSITIVE_INFINITY }),
      },
    },
    {
      name: 'one statement alone',
      inFlight,
      contestants: {
        'pg by hand, named': () => pool.query({ name: 'clock', text: clock }),
        'dibs.now()': () => dibs.now(),
        'dibs.now(), prepared: false': () => unnamed.now(),
      },
    },
  ])
  return {
    contests,
    async close() {
      await dibs.close()
      await unnamed.close()
      await pool.end()
    },
  }
}
