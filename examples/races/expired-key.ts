import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region shared
// Hours. It is 24 now; the key was kept until 24.
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

const afterCleanUp = (fn: (db: Pool) => Promise<string>) => async (db: Pool) => {
  await cleanUp(db)
  return fn(db)
}

export const race: Race = {
  title: 'A key, cleaned up before it is read',
  line: 'a request gets no answer',
  claim:
    'The NestJS patterns: keep a key for 24 hours and clean up with a DELETE; create a thing once with `on conflict do nothing`, and see whether a row was inserted. Here are both together. Alice and bob send the same request; bob cleans up before his.',
  fault:
    "Alice's INSERT meets the expired key and does nothing. Bob deletes the key. Her SELECT finds none, and she has no answer to give.",
  remedy:
    'One statement decides whether the key is new, live or expired, and takes an expired one over, whether or not somebody cleans up. It locks a live one too, so that nobody deletes that before it is read.',
  tables: 'create table request (key text primary key, response text not null, expires int not null)',
  setup: (db) => db.query(`insert into request values ('k', 'first order', 24)`),
  invariant: (_, outcomes) => {
    for (const [name, answer] of Object.entries(answersOf(outcomes))) assert(answer, `${name} got no answer`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: order, bob: afterCleanUp(order) } },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: orderUnlessKnown, bob: afterCleanUp(orderUnlessKnown) },
    },
  ],
}
