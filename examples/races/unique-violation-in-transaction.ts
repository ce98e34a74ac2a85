import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const create = (db: Pool, id: string) =>
  inTransaction(db, async (tx) => {
    const find = () => tx.query(`select id from resource where key = 'k'`)
    const found = await find()
    if (found.rows[0]) return found.rows[0].id
    try {
      await tx.query(`insert into resource (key, id) values ('k', $1)`, [id])
      return id
    } catch (error) {
      if ((error as { code?: string }).code !== '23505') throw error
      return (await find()).rows[0].id // another pod was faster
    }
  })
// #endregion

// #region right
const createOrFind = (db: Pool, id: string) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(
      `insert into resource (key, id) values ('k', $1) on conflict do nothing`,
      [id],
    )
    if (rowCount === 1) return id
    const { rows } = await tx.query(`select id from resource where key = 'k'`)
    return rows[0].id
  })
// #endregion

export const race: Race = {
  title: 'A unique violation, caught in a transaction',
  line: 'the transaction is aborted, with all that was done in it',
  claim:
    'The pod standard: look the key up, else insert; on a unique violation, read and return what the other has created. Here the caller has a transaction open, as callers do.',
  fault:
    "Bob inserts between alice's SELECT and her INSERT. She expects the violation; but in PostgreSQL an error aborts the transaction, so her next SELECT is refused, and all that the caller has done before is lost.",
  remedy:
    '`on conflict do nothing` waits for the other all the same, and then is no error. At READ COMMITTED the SELECT after it sees what the other has committed.',
  tables: 'create table resource (key text primary key, id text not null)',
  setup: () => {},
  invariant: (_, outcomes) => {
    const { alice, bob } = answersOf(outcomes)
    assert(alice === bob, `alice was told ${alice}, and bob ${bob}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => create(db, 'A'), bob: (db) => create(db, 'B') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => createOrFind(db, 'A'), bob: (db) => createOrFind(db, 'B') },
    },
  ],
}
