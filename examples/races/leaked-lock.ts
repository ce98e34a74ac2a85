import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
const award = async (db: Pool, id: string) => {
  if (!(await kv.setIfAbsent(db, 'caplock', { id, status: 'PENDING' }))) return 'busy'
  await db.query('update child set points = points + 5')
  await kv.set(db, 'caplock', { ...(await kv.get(db, 'caplock')), status: 'ACTIVE' }) // finalize all locks
  return 'awarded'
}
// #endregion

// #region right
const awardWithinCap = async (db: Pool) => {
  const { rowCount } = await db.query('update child set points = points + 5 where points + 5 <= cap')
  return rowCount === 1 ? 'awarded' : 'cap reached'
}
// #endregion

export const race: Race = {
  title: 'The lock that is finalized and never released',
  claim:
    'The claim reference, for an operation that takes an idempotency claim and the lock of a daily quota: "Finalize locks after success", PENDING → ACTIVE, all of them.',
  fault:
    'Not a race: one award alone is enough. A claim is a record, and stays; a lock must go. Nobody releases this one, so everybody else is busy until it counts as stale: one award in three seconds.',
  remedy:
    'A quota needs no lock. One UPDATE checks and adds; a second one waits for it, and checks the newest version of the row.',
  tables: `
    ${kvTable};
    create table child (points int not null, cap int not null)`,
  setup: (db) => db.query('insert into child values (0, 50)'),
  invariant: async (db) => {
    const { rowCount } = await db.query(`select from kv where key = 'caplock'`)
    assert(rowCount === 0, 'everybody is done, and the lock is taken')
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { alice: (db) => award(db, 'A'), bob: (db) => award(db, 'B') },
    },
    { name: 'right', verdict: 'passed', actors: { alice: awardWithinCap, bob: awardWithinCap } },
  ],
}
