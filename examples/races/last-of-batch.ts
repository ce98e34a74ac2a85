import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region in a transaction
const finish = (item: number) => (db: Pool) =>
  inTransaction(db, async (tx) => {
    await tx.query('update item set is_done = true where id = $1', [item])
    const { rows } = await tx.query('select count(*)::int as n from item where batch = 1 and not is_done')
    if (rows[0].n === 0) await tx.query('insert into completion (batch) values (1)')
  })
// #endregion

// #region statement by statement
const finishByStatement = (item: number) => async (db: Pool) => {
  await db.query('update item set is_done = true where id = $1', [item])
  const { rows } = await db.query('select count(*)::int as n from item where batch = 1 and not is_done')
  if (rows[0].n === 0) await db.query('insert into completion (batch) values (1)')
}
// #endregion

// #region right
const finishUnderLock = (item: number) => (db: Pool) =>
  inTransaction(db, async (tx) => {
    await tx.query('select from batch where id = 1 for update')
    await tx.query('update item set is_done = true where id = $1', [item])
    const { rows } = await tx.query('select count(*)::int as n from item where batch = 1 and not is_done')
    if (rows[0].n === 0) await tx.query('insert into completion (batch) values (1)')
  })
// #endregion

export const race: Race = {
  title: 'The last one of a batch',
  claim:
    'The usual way to notice that a batch is complete: each worker marks its item, counts those that are not done, and whoever counts none calls the handler for the end of the batch.',
  fault:
    'In a transaction nobody is the last: bob’s UPDATE is not committed when ann counts, and ann’s is not when bob counts, so each sees one item left, and the batch never ends. Statement by statement both are the last: each has committed its own UPDATE before either counts.',
  remedy:
    'Lock the row of the batch first. Those who finish at the same time then count one after the other, and the count is a statement of its own after the wait, so that it sees what the one before has committed. (At REPEATABLE READ it would not.)',
  tables: `
    create table batch (id int primary key);
    create table item (id int primary key, batch int not null references batch, is_done boolean not null default false);
    create table completion (batch int not null)`,
  setup: (db) => db.query('insert into batch values (1); insert into item values (1, 1), (2, 1)'),
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as n from completion')
    assert(rows[0].n === 1, `all items are done, and the batch was completed ${rows[0].n} times`)
  },
  variants: [
    { name: 'in a transaction', verdict: 'race', actors: { ann: finish(1), bob: finish(2) } },
    {
      name: 'statement by statement',
      verdict: 'race',
      actors: { ann: finishByStatement(1), bob: finishByStatement(2) },
    },
    { name: 'right', verdict: 'passed', actors: { ann: finishUnderLock(1), bob: finishUnderLock(2) } },
  ],
}
