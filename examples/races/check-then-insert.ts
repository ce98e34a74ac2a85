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
  title: 'A key, looked up and then inserted',
  line: 'an error in place of the stored response',
  claim:
    'The NestJS patterns: look the key up. If it is new, execute, and store key and response in the same transaction; a second request then gets the stored response.',
  fault:
    'Until bob has committed, alice finds no key. Both execute, and she fails at the very end, on the key. Her order is rolled back; a card charged on the way stays charged, twice.',
  remedy:
    'The key comes first. There the second request waits for the first, before it has done anything, and then reads the response; if the first rolls back, the second executes. A response that is known only at the end is written with an UPDATE in the same transaction. A card is outside of it: send the key along.',
  tables: `
    create table request (key text primary key, response text not null);
    create table orders (id text primary key)`,
  setup: () => {},
  invariant: async (db, outcomes) => {
    const { alice, bob } = answersOf(outcomes)
    assert(alice === bob, `alice was told ${alice}, and bob ${bob}`)
    const { rows } = await db.query('select id from orders')
    assert(rows.length === 1, `${rows.length} orders`)
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
