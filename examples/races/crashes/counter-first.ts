import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from '../in-transaction.js'
import type { Crash } from './crash.js'

// #region wrong
const award = async (db: Pool) => {
  const { rows } = await db.query('select from event where id = 1')
  if (rows.length > 0) return 'awarded before'
  const { rowCount } = await db.query(
    `update child set today = today + 5 where name = 'mia' and today + 5 <= 20`,
  )
  if (rowCount === 0) return 'the day is full'
  await db.query(`insert into event values (1, 'mia', 5)`)
  return 'awarded'
}
// #endregion

// #region right
const awardTogether = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const event = await tx.query(`insert into event values (1, 'mia', 5) on conflict do nothing`)
    if (event.rowCount === 0) return 'awarded before'
    const { rowCount } = await tx.query(
      `update child set today = today + 5 where name = 'mia' and today + 5 <= 20`,
    )
    if (rowCount === 0) throw new Error('the day is full') // and the event goes with it
    return 'awarded'
  })
// #endregion

export const crash: Crash = {
  title: 'The counter first, then the event',
  line: 'points are used up that nobody got',
  claim:
    'The claim reference: check and raise the daily counter, then create the event. The counter must never be too low, so it comes first.',
  fault:
    'If the process ends in between, the points are counted and there is no event. The retry finds no event, so it counts them again. A quota of 20 is used up by events of 5.',
  remedy:
    'Counter and event are one transaction. The event comes first: its key tells whether this is a retry, in the same statement that claims it.',
  tables: `
    create table child (name text primary key, today int not null);
    create table event (id int primary key, child text not null, points int not null)`,
  setup: (db) => db.query(`insert into child values ('mia', 0)`),
  invariant: async (db) => {
    const { rows } = await db.query(
      'select (select sum(today) from child)::int as counted, (select coalesce(sum(points), 0) from event)::int as given',
    )
    const [{ counted, given }] = rows
    assert(counted === given, `${counted} points are counted, ${given} were given`)
    assert(given === 5, `${given} points were given`)
  },
  variants: [
    { name: 'wrong', failsAt: 'crash:after-2', run: award },
    { name: 'right', failsAt: null, run: awardTogether },
  ],
}
