import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const buy = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query(`select amount from stock where sku = 'lamp'`)
    if (rows[0].amount < 1) return 'sold out'
    await tx.query(`update stock set amount = amount - 1 where sku = 'lamp'`)
    return 'bought'
  })
// #endregion

// #region right
const buyIfThere = async (db: Pool) => {
  const { rowCount } = await db.query(
    `update stock set amount = amount - 1 where sku = 'lamp' and amount > 0`,
  )
  return rowCount === 1 ? 'bought' : 'sold out'
}
// #endregion

export const race: Race = {
  title: 'A stock, checked and then lowered',
  line: 'one item left, and two are sold',
  claim:
    'The NestJS patterns list this as a mistake, and are right. A transaction around it is often thought to be the cure, and is not.',
  fault:
    "At READ COMMITTED a transaction does not keep what it has read from changing. Bob buys between alice's SELECT and her UPDATE, and she takes one from zero. The update that gets lost is the one her check should have seen.",
  remedy:
    'The condition stands in the statement that writes. If that statement has to wait, PostgreSQL checks the condition again on the newest version of the row. The second buyer updates no row, and is told. Add `check (amount >= 0)` to the table for all the code that forgets.',
  tables: 'create table stock (sku text primary key, amount int not null)',
  setup: (db) => db.query(`insert into stock values ('lamp', 1)`),
  invariant: async (db) => {
    const { rows } = await db.query('select amount from stock')
    assert(rows[0].amount >= 0, `amount is ${rows[0].amount}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: buy, bob: buy } },
    { name: 'right', verdict: 'passed', actors: { alice: buyIfThere, bob: buyIfThere } },
  ],
}
