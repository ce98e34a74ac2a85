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
  title: 'The last item in stock',
  claim:
    'The NestJS patterns name this as the wrong way, and are right. A transaction around it, often thought to help, does not.',
  fault:
    "A transaction at READ COMMITTED does not keep what it has read. Bob buys between alice's SELECT and her UPDATE, and she takes one from zero.",
  remedy:
    'The condition stands in the statement that writes. If that has to wait, PostgreSQL checks the condition again on the newest version of the row. The second buyer updates no row, and knows it.',
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
