import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region shared
/** Takes the lock if its time is over, for three seconds. Its fence goes up each time. */
const acquire = async (db: Pool, now: number): Promise<number | undefined> => {
  const { rows } = await db.query(
    'update lock set until = $1 + 3, fence = fence + 1 where until <= $1 returning fence',
    [now],
  )
  return rows[0]?.fence
}
// #endregion

// #region wrong
const award = async (db: Pool, now: number) => {
  if (!(await acquire(db, now))) return 'busy'
  const { rows } = await db.query('select points from child')
  await db.query('update child set points = $1', [rows[0].points + 5])
  return 'awarded'
}
// #endregion

// #region late
const awardFenced = async (db: Pool, now: number) => {
  const fence = await acquire(db, now)
  if (!fence) return 'busy'
  const { rows } = await db.query('select points from child')
  const { rowCount } = await db.query('update child set points = $1, fence = $2 where fence <= $2', [
    rows[0].points + 5,
    fence,
  ])
  return rowCount === 1 ? 'awarded' : 'lock lost'
}
// #endregion

// #region guarded
const awardGuarded = async (db: Pool, now: number) => {
  const fence = await acquire(db, now)
  if (!fence) return 'busy'
  return inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query('select from lock where fence = $1 for share', [fence])
    if (rowCount === 0) return 'lock lost'
    const { rows } = await tx.query('select points from child')
    await tx.query('update child set points = $1', [rows[0].points + 5])
    return 'awarded'
  })
}
// #endregion

// #region right
const awardInOneRow = async (db: Pool, now: number) => {
  const { rows } = await db.query(
    'update child set until = $1 + 3, fence = fence + 1 where until <= $1 returning points, fence',
    [now],
  )
  if (rows.length === 0) return 'busy'
  const { rowCount } = await db.query('update child set points = $1 where fence = $2', [
    rows[0].points + 5,
    rows[0].fence,
  ])
  return rowCount === 1 ? 'awarded' : 'lock lost'
}
// #endregion

const both = (fn: (db: Pool, now: number) => Promise<string>) => ({
  alice: (db: Pool) => fn(db, 0),
  bob: (db: Pool) => fn(db, 10),
})

export const race: Race = {
  title: 'A lock that ends after three seconds',
  line: 'a holder that paused writes after it has lost the lock',
  claim:
    'The claim reference reads, adds and writes under a lock that ends after three seconds; the NestJS patterns recommend such a lock for money. Alice takes it at second 0 and pauses, for a garbage collection or a slow network. Bob comes at second 10.',
  fault:
    "Time ends the lock, but not its holder. Alice does not know that she has lost it, and writes over bob's points what she has made of her old read.",
  remedy:
    'The lock stands in the row that it protects. One statement takes it, raises the fence and reads; from then on the row refuses every earlier holder. Where the lock is in another database, no guard reaches it: raise the fence in the row before you read it. And where one statement can do the work, `set points = points + 5` needs no lock.',
  tables: `
    create table lock (until int not null, fence int not null);
    create table child (points int not null, until int not null, fence int not null)`,
  setup: (db) => db.query('insert into lock values (0, 0); insert into child values (0, 0, 0)'),
  invariant: async (db, outcomes) => {
    const awards = Object.values(answersOf(outcomes)).filter((answer) => answer === 'awarded').length
    const { rows } = await db.query('select points from child')
    assert(rows[0].points === awards * 5, `${awards} awards of 5, and ${rows[0].points} points`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: both(award) },
    {
      name: 'late',
      title: 'Still wrong: a fence at the write only',
      text: "The row refuses an older fence, but learns of a fence only when somebody writes. Bob takes the lock over and reads between alice's UPDATE and its COMMIT, so he does not see her points. His fence is the newer one, and he writes over hers.",
      verdict: 'race',
      actors: both(awardFenced),
    },
    {
      name: 'guarded',
      title: 'Right: a guard in the transaction that writes',
      text: 'The transaction looks whether it still has the lock, and keeps the row of the lock from changing until it ends. Either bob has taken over, and alice finds another fence; or his takeover waits for her COMMIT, and he reads her points.',
      verdict: 'passed',
      actors: both(awardGuarded),
    },
    {
      name: 'right',
      title: 'Right: the lock in the row itself',
      verdict: 'passed',
      actors: both(awardInOneRow),
    },
  ],
}
