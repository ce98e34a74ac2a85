import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
const award = async (db: Pool, id: string) => {
  if (!(await kv.setIfAbsent(db, 'caplock', { id, status: 'PENDING' }))) return 'busy'
  const { rows } = await db.query('select points, cap from child')
  if (rows[0].points + 5 <= rows[0].cap) await db.query('update child set points = $1', [rows[0].points + 5])
  await kv.set(db, 'caplock', { id, status: 'ACTIVE' }) // finalize
}
// #endregion

// #region right
const awardWithinCap = (db: Pool) => db.query('update child set points = points + 5 where points + 5 <= cap')
// #endregion

export const race: Race = {
  title: 'A lock, finalized like a claim',
  line: 'it is never released',
  claim:
    'The claim reference: an operation takes an idempotency claim and the lock of a daily quota. After success it finalizes both, from PENDING to ACTIVE.',
  fault:
    'A claim is a record, and stays; a lock must go. Nobody releases this one, so bob is told that it is busy, and so is everybody until it counts as stale.',
  remedy:
    'A quota needs no lock. One UPDATE checks and adds; a second one waits for it, and checks the newest version of the row.',
  tables: `
    ${kvTable};
    create table child (points int not null, cap int not null)`,
  setup: (db) => db.query('insert into child values (45, 50)'),
  invariant: async (db) => {
    const { rows } = await db.query('select points from child')
    assert(rows[0].points === 50, `${rows[0].points} points, and the cap is 50`)
    assert((await kv.get(db, 'caplock')) === undefined, 'everybody is done, and the lock is taken')
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
