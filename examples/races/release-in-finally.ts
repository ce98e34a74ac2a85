import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region shared
/** Takes the lock if it is free, or older than three seconds. */
const acquire = async (db: Pool, holder: string, now: number) => {
  const { rowCount } = await db.query(
    `insert into kv values ('lock', $1) on conflict (key) do update set value = $1
     where (kv.value->>'at')::int < $2`,
    [{ holder, at: now }, now - 3],
  )
  return rowCount === 1
}
// #endregion

const work = () => {}

// #region wrong
const withLock = async (db: Pool, holder: string, now: number) => {
  if (!(await acquire(db, holder, now))) return 'busy'
  try {
    work()
  } finally {
    await kv.del(db, 'lock')
  }
}
// #endregion

// #region right
const withOwnLock = async (db: Pool, holder: string, now: number) => {
  if (!(await acquire(db, holder, now))) return 'busy'
  try {
    work()
  } finally {
    await db.query(`delete from kv where key = 'lock' and value->>'holder' = $1`, [holder])
  }
}
// #endregion

/** Bob comes at 10 and is at work to the end. */
const bob = (db: Pool) => acquire(db, 'bob', 10)

export const race: Race = {
  title: 'A lock, released in `finally`',
  line: 'the lock of the next holder is deleted',
  claim:
    'The claim reference: `finally` makes sure that the lock is released. Alice takes it at second 0 and is slow. Bob comes at second 10, takes it over as stale, and is still at work when alice is done.',
  fault:
    "Bob takes the stale lock over, as he may. Then alice deletes the lock by its key, and it is bob's. The next one walks in while he is at work.",
  remedy:
    'The DELETE names the holder, so alice deletes nothing. Make `holder` a new value for each time the lock is taken: the name of a process may be that of the next holder too.',
  tables: kvTable,
  setup: () => {},
  invariant: async (db, outcomes) => {
    const { rows } = await db.query(`select value->>'holder' as holder from kv where key = 'lock'`)
    if (answersOf(outcomes).bob) assert(rows[0]?.holder === 'bob', 'bob is at work, and his lock is gone')
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: (db) => withLock(db, 'alice', 0), bob } },
    { name: 'right', verdict: 'passed', actors: { alice: (db) => withOwnLock(db, 'alice', 0), bob } },
  ],
}
