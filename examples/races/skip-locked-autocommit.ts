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
  title: 'SKIP LOCKED outside a transaction',
  claim:
    'A concurrency standard for services in many pods has each worker take an item with `FOR UPDATE SKIP LOCKED` and then mark it. "Each item processed by exactly one pod."',
  fault:
    'The pool runs every statement in a transaction of its own. The row lock ends with the SELECT that took it, before the UPDATE that should be protected. Bob selects in that gap, finds nothing locked and nothing marked, and takes the same item.',
  remedy:
    'One UPDATE locks and marks. Its lock lasts until the mark is committed, so another worker sees either the lock, and skips, or the mark.',
  tables: `
    create table item (id int primary key, status text not null);
    create table run (item int not null)`,
  setup: (db) => db.query(`insert into item values (1, 'pending')`),
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as runs from run')
    assert(rows[0].runs <= 1, `item 1 was processed ${rows[0].runs} times`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: work, bob: work } },
    { name: 'right', verdict: 'passed', actors: { alice: claimAndWork, bob: claimAndWork } },
  ],
}
