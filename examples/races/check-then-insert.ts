import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const order = async (db: Pool, id: string) => {
  const { rows } = await db.query(`select response from request where key = 'k'`)
  if (rows[0]) return rows[0].response
  return inTransaction(db, async (tx) => {
    await tx.query('insert into orders values ($1)', [id])
    await tx.query(`insert into request values ('k', $1)`, [id])
    return id
  })
}
// #endregion

// #region right
const orderOnce = (db: Pool, id: string) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(`insert into request values ('k', $1) on conflict do nothing`, [id])
    if (rowCount === 1) {
      await tx.query('insert into orders values ($1)', [id])
      return id
    }
    const { rows } = await tx.query(`select response from request where key = 'k'`)
    return rows[0].response
  })
// #endregion

export const race: Race = {
  title: 'An idempotency key, looked up and then inserted',
  claim:
    'A set of state-management patterns for NestJS and Prisma looks the key up, executes, and stores key and response in the same transaction: "second request returns cached response".',
  fault:
    'The lookup finds nothing until the other request has committed. Both execute; the second fails on the key that it stores last, and its user gets an error in place of the stored response. The transaction takes its order back, but not what it did elsewhere: a card is charged twice.',
  remedy:
    'The key comes first. The second request waits there until the first has committed, having done nothing yet, and then reads the response. If the first rolls back, the second executes.',
  tables: `
    create table request (key text primary key, response text not null);
    create table orders (id text primary key)`,
  setup: () => {},
  invariant: async (db, outcomes) => {
    const { alice, bob } = answersOf(outcomes)
    assert.equal(alice, bob, `alice was told ${alice}, and bob ${bob}`)
    const { rows } = await db.query('select id from orders')
    assert.equal(rows.length, 1, `${rows.length} orders`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => order(db, 'A'), bob: (db) => order(db, 'B') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => orderOnce(db, 'A'), bob: (db) => orderOnce(db, 'B') },
    },
  ],
}
