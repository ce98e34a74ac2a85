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
  title: 'A batch that its last worker completes',
  line: 'it is completed never, or twice',
  claim:
    'Common practice: each worker marks its item and counts those that are left; whoever counts none completes the batch.',
  fault:
    'Nobody is the last. Alice counts one left, since bob has not marked his. Bob counts one left, since alice has not committed hers. All items are done, and the batch never ends.',
  remedy:
    'Lock the row of the batch first. Workers then mark and count one after the other, and the count is a statement that begins after the wait, so it sees what the one before has committed. (At REPEATABLE READ it would not.)',
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
    {
      name: 'in a transaction',
      title: 'Wrong: in a transaction',
      verdict: 'race',
      actors: { alice: finish(1), bob: finish(2) },
    },
    {
      name: 'statement by statement',
      title: 'Still wrong: statement by statement',
      text: 'Now both are the last. Each has committed its own UPDATE before either counts, so both count none left.',
      verdict: 'race',
      actors: { alice: finishByStatement(1), bob: finishByStatement(2) },
    },
    { name: 'right', verdict: 'passed', actors: { alice: finishUnderLock(1), bob: finishUnderLock(2) } },
  ],
}
