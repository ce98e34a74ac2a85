import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const pay = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query(`select result from execution where process = 7 and step = 'pay'`)
    if (rows.length > 0) return rows[0].result
    await tx.query('insert into payment (process) values (7)')
    await tx.query(`insert into execution values (7, 'pay', $1, 'paid')`, [randomUUID()])
    return 'paid'
  })
// #endregion

// #region right
const payOnce = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(`insert into step values (7, 'pay', 'paid') on conflict do nothing`)
    if (rowCount === 1) await tx.query('insert into payment (process) values (7)')
    const { rows } = await tx.query(`select result from step where process = 7 and name = 'pay'`)
    return rows[0].result
  })
// #endregion

export const race: Race = {
  title: 'A key with a random part',
  line: 'a step is paid twice',
  claim:
    'The bus analysis: to run a step no more than once, return its recorded result if there is one; else run the step, and record the result under process, step and a fresh random `execution_id`.',
  fault:
    'Both look before the record of either is committed, as when a claim was taken over from a worker that still runs. The primary key should stop the second record. But its last column is random, so no two records ever collide, and both pay.',
  remedy:
    'The key is what must happen once: process and step. It is inserted before the effect. There the second worker waits until the first has committed, inserts nothing, and returns the recorded result. For an effect outside the database, the same two values are the idempotency key to send along.',
  tables: `
    create table execution (process int, step text, execution_id uuid, result text, primary key (process, step, execution_id));
    create table step (process int, name text, result text, primary key (process, name));
    create table payment (process int not null)`,
  setup: () => {},
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as n from payment')
    assert(rows[0].n === 1, `paid ${rows[0].n} times`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: pay, bob: pay } },
    { name: 'right', verdict: 'passed', actors: { alice: payOnce, bob: payOnce } },
  ],
}
