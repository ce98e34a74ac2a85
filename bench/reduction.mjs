// Cost of exploring three actors: all distinguishable schedules, and all orders of their statements, up to a bound.
import pg from 'pg'
import { explore } from '../dist/testing.js'

const READ = 'select n from reduced where id = 1'
const ADD = 'update reduced set n = n + 1 where id = 1'
const OTHER = 'update reduced set n = n + 1 where id = 2'

/** The statements of each actor between BEGIN and COMMIT; `$1` is its number. */
const cases = {
  'read, then update one row': [READ, ADD],
  'lock, then update one row': [`${READ} for update`, ADD],
  'read, update two rows in one order': [READ, ADD, OTHER],
  'look for a key, insert it, update a row': [
    `select from reduced_key where key = 'k'`,
    `insert into reduced_key values ('k') on conflict do nothing`,
    ADD,
  ],
  'claim with SKIP LOCKED, note it': [
    `update reduced set n = 1
     where id = (select id from reduced where n = 0 order by id limit 1 for update skip locked)`,
    'insert into reduced_note values ($1)',
  ],
  'update rows of their own': [
    'update reduced set n = n + 1 where id = $1',
    'select n from reduced where id = $1',
  ],
}

async function act(db, n, statements) {
  const client = await db.connect()
  try {
    await client.query('begin')
    for (const sql of statements) await client.query(sql, sql.includes('$1') ? [n] : [])
    await client.query('commit')
  } finally {
    client.release()
  }
}

/** For each case: schedules and seconds, with and without leaving out those for which others stand. */
export async function measureReduction(url, mostSchedules) {
  const admin = new pg.Client(url)
  await admin.connect()
  await admin.query(`
    create table if not exists reduced (id int primary key, n int not null);
    create table if not exists reduced_key (key text primary key);
    create table if not exists reduced_note (n int)`)
  await admin.end()
  const results = []
  for (const [name, statements] of Object.entries(cases)) {
    const run = (everyOrder) =>
      explore({
        url,
        setup: (db) => db.query('insert into reduced select g, 0 from generate_series(1, 3) g'),
        actors: Object.fromEntries(
          ['alice', 'bob', 'carol'].map((actor, i) => [actor, (db) => act(db, i + 1, statements)]),
        ),
        invariant: (db) => db.query('select sum(n) from reduced'),
        bound: { schedules: mostSchedules, random: 0 },
        everyOrder,
      })
    const reduced = await run(false)
    const every = await run(true)
    results.push({
      case: name,
      statements: statements.length + 2,
      schedules: reduced.schedules + (reduced.isExhaustive ? '' : ' (not all)'),
      repeats: reduced.reduction.repeats,
      seconds: (reduced.tookMs / 1_000).toFixed(1),
      everyOrder: every.isComplete ? every.schedules : `more than ${every.schedules}`,
      everySeconds: (every.tookMs / 1_000).toFixed(1),
    })
  }
  return results
}
