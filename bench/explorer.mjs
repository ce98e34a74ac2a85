// How many schedules the explorer runs in a second, for two actors of four statements each.
import pg from 'pg'
import { explore } from '../dist/testing/index.js'

const cases = {
  'counter in a transaction (begin, select, update, commit)': {
    setup: (db) => db.query('insert into explored values (1, 0)'),
    act: async (db) => {
      const client = await db.connect()
      await client.query('begin')
      const { rows } = await client.query('select n from explored where id = 1')
      await client.query('update explored set n = $1 where id = 1', [rows[0].n + 1])
      await client.query('commit')
      client.release()
    },
    isRight: false,
  },
  'the same with for update': {
    setup: (db) => db.query('insert into explored values (1, 0)'),
    act: async (db) => {
      const client = await db.connect()
      await client.query('begin')
      const { rows } = await client.query('select n from explored where id = 1 for update')
      await client.query('update explored set n = $1 where id = 1', [rows[0].n + 1])
      await client.query('commit')
      client.release()
    },
    isRight: true,
  },
  'four autocommit updates of rows of its own': {
    setup: (db) => db.query('insert into explored select g, 0 from generate_series(1, 8) g'),
    act: async (db, n) => {
      for (let i = 1; i <= 4; i++) await db.query('update explored set n = n + 1 where id = $1', [n * 4 + i])
    },
    isRight: true,
  },
}

/** Rates of schedules, case by case. */
export async function measureExplorer(url, schedules) {
  const admin = new pg.Client(url)
  await admin.connect()
  await admin.query('create table if not exists explored (id int primary key, n int not null)')
  await admin.end()
  const results = []
  for (const [name, { setup, act }] of Object.entries(cases)) {
    const startedAt = performance.now()
    let done = 0
    while (done < schedules) {
      const report = await explore({
        url,
        setup,
        actors: { alice: (db) => act(db, 0), bob: (db) => act(db, 1) },
        invariant: (db) => db.query('select sum(n) from explored'),
        bound: { schedules: schedules - done, random: 0 },
      })
      done += report.schedules
    }
    results.push({
      case: name,
      schedules: done,
      perSecond: Math.round(done / ((performance.now() - startedAt) / 1000)),
    })
  }
  return results
}
