// Measures `crashLoop`: a program of twenty statements, crashed at each of its points.
import pg from 'pg'
import { crashLoop } from '../dist/testing.js'

/** Five pieces of work of four statements each: a claim of its own, a read, and a transaction of two steps. */
async function work(db) {
  for (let item = 1; item <= 5; item++) {
    const claimed = await db.query('update crash_item set fence = fence + 1 where id = $1 and done = 0', [
      item,
    ])
    if (claimed.rowCount === 0) continue
    const client = await db.connect()
    try {
      await client.query('begin')
      await client.query('insert into crash_log values ($1) on conflict do nothing', [item])
      await client.query('update crash_item set done = 1 where id = $1', [item])
      await client.query('commit')
    } finally {
      client.release()
    }
  }
}

/** Statements, points, runs and seconds, mode by mode, and in all that are tried by default. */
export async function measureCrashLoop(url, modes) {
  const admin = new pg.Client(url)
  await admin.connect()
  await admin.query(`
    create table if not exists crash_item (id int primary key, fence int not null, done int not null);
    create table if not exists crash_log (id int primary key)`)
  await admin.end()
  const results = []
  for (const [name, chosen] of Object.entries(modes)) {
    const { statements, points, runs, tookMs, verdict, printout } = await crashLoop({
      url,
      setup: (db) => db.query('insert into crash_item select g, 0, 0 from generate_series(1, 5) g'),
      run: work,
      modes: chosen,
      progress: async (db) => (await db.query('select from crash_item where done = 0')).rows.length === 0,
      invariant: async (db) => (await db.query('select from crash_log')).rows.length === 5,
      mayWriteLate: () => true,
      throws: false,
    })
    if (verdict !== 'passed') throw new Error(printout)
    results.push({
      modes: name,
      statements,
      points: points.length - 1,
      runs,
      seconds: (tookMs / 1_000).toFixed(1),
      perSecond: Math.round((runs / tookMs) * 1_000),
    })
  }
  return results
}
