import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const finish = async (db: Pool, child: number) => {
  await db.query(`update child set status = 'done' where id = $1`, [child])
  const { rows } = await db.query(`select count(*)::int as n from child where status = 'done'`)
  await db.query('update parent set done = $1 where id = 1', [rows[0].n])
}
// #endregion

// #region one-statement
const finishInOne = (db: Pool, child: number) =>
  inTransaction(db, async (tx) => {
    await tx.query(`update child set status = 'done' where id = $1`, [child])
    await tx.query(`update parent set done = (select count(*) from child where status = 'done') where id = 1`)
  })
// #endregion

// #region right
const finishLocked = (db: Pool, child: number) =>
  inTransaction(db, async (tx) => {
    await tx.query(`update child set status = 'done' where id = $1`, [child])
    await tx.query('select from parent where id = 1 for update')
    await tx.query(`update parent set done = (select count(*) from child where status = 'done') where id = 1`)
  })
// #endregion

export const race: Race = {
  title: 'A total, counted and then written',
  line: 'two are done, and the total says 1',
  claim:
    'The pod standard: never increment a total; count its source again and write the result. Then the total is always right.',
  fault:
    'Alice counts 1. Bob finishes his child, counts 2 and writes 2. Alice writes her 1 over it. Nobody counts again, so it stays.',
  remedy:
    'A statement of its own locks the parent. The next one begins after that wait, so it counts all that is committed, and nobody else writes a total before COMMIT.',
  tables: `
    create table parent (id int primary key, done int not null);
    create table child (id int primary key, status text not null)`,
  setup: (db) =>
    db.query(`
      insert into parent values (1, 0);
      insert into child values (1, 'open'), (2, 'open')`),
  invariant: async (db) => {
    const { rows } = await db.query(
      `select done, (select count(*)::int from child where status = 'done') as truth from parent`,
    )
    assert(rows[0].done === rows[0].truth, `the total says ${rows[0].done}, and there are ${rows[0].truth}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => finish(db, 1), bob: (db) => finish(db, 2) },
    },
    {
      name: 'one-statement',
      title: 'Still wrong: one statement, in a transaction',
      text: "Bob waits for the parent, which alice has written. When he goes on, he has the newest version of that row, but his count is of the moment when his statement began, before alice's child was committed. (Without a transaction the gap is smaller: between the snapshot of the one statement and its row lock, where the explorer does not look.)",
      verdict: 'race',
      actors: { alice: (db) => finishInOne(db, 1), bob: (db) => finishInOne(db, 2) },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => finishLocked(db, 1), bob: (db) => finishLocked(db, 2) },
    },
  ],
}
