// How many schedules the explorer runs in a second, for two actors of four statements each; the bar is 200.
import pg from 'pg'
import { explore } from '../dist/testing.js'

async function inTransaction(db, id) {
  const client = await db.connect()
  await client.query('begin')
  const { rows } = await client.query('select n from explored where id = $1', [id])
  await client.query('update explored set n = $1 where id = $2', [rows[0].n + 1, id])
  await client.query('commit')
  client.release()
}

async function onItsOwn(db, n) {
  for (let i = 1; i <= 4; i++) await db.query('update explored set n = n + 1 where id = $1', [n * 4 + i])
}

/** The program of each of the two actors; `n` is 0 or 1. */
const cases = {
  'begin, select, update, commit, of the same row (waits)': (db) => inTransaction(db, 1),
  'begin, select, update, commit, of rows of their own': (db, n) => inTransaction(db, n + 1),
  'four updates outside a transaction, of rows of their own (16 steps)': onItsOwn,
}

/** For each case: schedules in a second, from connecting to the end of the last exploration. */
export async function measureExplorer(url, schedules) {
  const admin = new pg.Client(url)
  await admin.connect()
  await admin.query('create table if not exists explored (id int primary key, n int not null)')
  await admin.end()
  const results = []
  for (const [name, act] of Object.entries(cases)) {
    let done = 0
    let seconds = 0
    const startedAt = performance.now()
    while (done < schedules) {
      const report = await explore({
        url,
        setup: (db) => db.query('insert into explored select g, 0 from generate_series(1, 8) g'),
        actors: { alice: (db) => act(db, 0), bob: (db) => act(db, 1) },
        invariant: (db) => db.query('select sum(n) from explored'),
        bound: { schedules: schedules - done, random: 0 },
        everyOrder: true,
      })
      done += report.schedules
      seconds += report.tookMs / 1_000
    }
    const wholeSeconds = (performance.now() - startedAt) / 1000
    results.push({
      case: name,
      schedules: done,
      perSecond: Math.round(done / seconds),
      withConnecting: Math.round(done / wholeSeconds),
    })
  }
  return results
}
