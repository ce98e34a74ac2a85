import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region forbidden
const finish = (db: Pool, item: number) =>
  inTransaction(db, async (tx) => {
    await tx.query(`update item set status = 'done' where id = $1`, [item])
    await tx.query('update batch set done = done + 1')
  })
// #endregion

// #region redelivered
const finishOnce = (db: Pool, item: number) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select status from item where id = $1', [item])
    if (rows[0].status === 'done') return
    await tx.query(`update item set status = 'done' where id = $1`, [item])
    await tx.query('update batch set done = done + 1')
  })
// #endregion

// #region right
const finishGuarded = (db: Pool, item: number) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(
      `update item set status = 'done' where id = $1 and status <> 'done'`,
      [item],
    )
    if (rowCount === 1) await tx.query('update batch set done = done + 1')
  })
// #endregion

export const race: Race = {
  title: 'A counter, incremented in place',
  line: 'nothing is lost, but what comes twice is counted twice',
  claim:
    'The pod standard forbids `count = count + 1`, since it loses updates. Two workers finish two items.',
  fault:
    'No order loses anything. The second UPDATE waits until the first is committed, and adds to the newest version of the row. (Above READ COMMITTED it fails with 40001, and is to be repeated.)',
  remedy:
    'The UPDATE of the item names the status it starts from. Whoever updates no row has not finished the item, and does not count it.',
  tables: `
    create table batch (done int not null);
    create table item (id int primary key, status text not null)`,
  setup: (db) =>
    db.query(`
      insert into batch values (0);
      insert into item values (1, 'open'), (2, 'open')`),
  invariant: async (db) => {
    const { rows } = await db.query(
      `select done, (select count(*)::int from item where status = 'done') as truth from batch`,
    )
    assert(rows[0].done === rows[0].truth, `the counter says ${rows[0].done}, and there are ${rows[0].truth}`)
  },
  variants: [
    {
      name: 'forbidden',
      title: 'Forbidden, and right',
      verdict: 'passed',
      actors: { alice: (db) => finish(db, 1), bob: (db) => finish(db, 2) },
    },
    {
      name: 'redelivered',
      title: 'Wrong: when an item comes twice',
      text: 'What does speak against increments: what comes twice is counted twice. Both workers were given item 1. Bob finishes it after alice has read that it is open, and she counts it again.',
      verdict: 'race',
      actors: { alice: (db) => finishOnce(db, 1), bob: (db) => finishOnce(db, 1) },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => finishGuarded(db, 1), bob: (db) => finishGuarded(db, 1) },
    },
  ],
}
