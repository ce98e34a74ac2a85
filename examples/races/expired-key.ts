import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// Hours. It is hour 24; the key of the first order ends now.
// #region shared
const cleanUp = (db: Pool) => db.query('delete from request where expires <= 24')
// #endregion

// #region wrong
const order = async (db: Pool) => {
  const { rowCount } = await db.query(
    `insert into request values ('k', 'second order', 48) on conflict do nothing`,
  )
  if (rowCount === 1) return 'second order'
  const { rows } = await db.query(`select response from request where key = 'k'`)
  return rows[0]?.response
}
// #endregion

// #region right
const orderUnlessKnown = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(
      `insert into request values ('k', 'second order', 48)
       on conflict (key) do update set response = excluded.response, expires = excluded.expires
       where request.expires <= 24`,
    )
    if (rowCount === 1) return 'second order'
    const { rows } = await tx.query(`select response from request where key = 'k'`)
    return rows[0]?.response
  })
// #endregion

export const race: Race = {
  title: 'A key that expires between the insert and the read',
  claim:
    'The same patterns keep a key for 24 hours and clear up with `DELETE … WHERE expires_at < NOW()`, whenever that runs. To create a thing once: "INSERT … ON CONFLICT DO NOTHING → check if inserted". Together:',
  fault:
    'The INSERT meets the expired key and does nothing; the cleanup deletes it; the SELECT finds nothing. The order is neither made nor answered. And without the cleanup the expired key would have been honored: when a key ends depends on when the cleanup runs.',
  remedy:
    'One statement decides whether the key is new, live or expired, and takes an expired one over. What it then reads is live, which the cleanup leaves alone.',
  tables: 'create table request (key text primary key, response text not null, expires int not null)',
  setup: (db) => db.query(`insert into request values ('k', 'first order', 24)`),
  invariant: (_, outcomes) => {
    const { client } = answersOf(outcomes)
    assert(client !== undefined, 'the client got no answer')
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { client: order, cleanUp } },
    { name: 'right', verdict: 'passed', actors: { client: orderUnlessKnown, cleanUp } },
  ],
}
