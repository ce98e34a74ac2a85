import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const work = async (db: Pool) => {
  const { rows } = await db.query(
    `select id from item where status = 'pending' limit 1 for update skip locked`,
  )
  if (rows.length === 0) return
  await db.query(`update item set status = 'processing' where id = $1`, [rows[0].id])
  await db.query('insert into run (item) values ($1)', [rows[0].id]) // the work
}
// #endregion

// #region right
const claimAndWork = async (db: Pool) => {
  const { rows } = await db.query(
    `update item set status = 'processing' where id = (
       select id from item where status = 'pending' limit 1 for update skip locked
     ) returning id`,
  )
  if (rows.length === 0) return
  await db.query('insert into run (item) values ($1)', [rows[0].id]) // the work
}
// #endregion

export const race: Race = {
  title: '`SKIP LOCKED` outside a transaction',
  line: 'two workers process one item',
  claim:
    'The pod standard: a worker selects an item with `FOR UPDATE SKIP LOCKED` and then marks it. So no two pods process the same one.',
  fault:
    'The pool runs each statement in a transaction of its own, so the row lock ends with the SELECT that took it. Bob selects before alice has marked the item, finds it neither locked nor marked, and takes it too.',
  remedy:
    'One UPDATE locks and marks, and holds the lock until the mark is committed. Another worker meets the lock and skips the item, or meets the mark. A worker that dies now leaves its item at `processing`: the next two races are about giving it to somebody else.',
  tables: `
    create table item (id int primary key, status text not null);
    create table run (item int not null)`,
  setup: (db) => db.query(`insert into item values (1, 'pending')`),
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as runs from run')
    assert(rows[0].runs === 1, `item 1 was processed ${rows[0].runs} times`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: work, bob: work } },
    { name: 'right', verdict: 'passed', actors: { alice: claimAndWork, bob: claimAndWork } },
  ],
}
