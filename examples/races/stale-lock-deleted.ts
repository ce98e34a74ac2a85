import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// Seconds. Somebody took the lock at 0 and died; it is 10 now.
// #region wrong
const acquire = async (db: Pool, holder: string) => {
  for (let attempt = 1; attempt <= 2; attempt++) {
    if (await kv.setIfAbsent(db, 'lock', { holder, at: 10 })) return 'acquired'
    const lock = await kv.get(db, 'lock')
    if (lock && lock.at < 10 - 3) await kv.del(db, 'lock') // stale
  }
  return 'busy'
}
// #endregion

// #region right
const acquireOrTakeOver = async (db: Pool, holder: string) => {
  const { rowCount } = await db.query(
    `insert into kv values ('lock', $1) on conflict (key) do update set value = $1
     where (kv.value->>'at')::int < 10 - 3`,
    [{ holder, at: 10 }],
  )
  return rowCount === 1 ? 'acquired' : 'busy'
}
// #endregion

export const race: Race = {
  title: 'A stale lock, deleted by its key',
  claim:
    'A quick reference for claims in a key-value store: if the lock is older than three seconds, its holder has crashed; "stale lock - force release", then try again.',
  fault:
    'Both see the stale lock. Bob deletes it and acquires. Then alice deletes too, and what she deletes is no longer what she has seen: it is the fresh lock of bob. Both hold it.',
  remedy:
    'One statement takes a free lock or a stale one. The second waits for the first, and looks at the age of the newest version of the row: it is fresh.',
  tables: kvTable,
  setup: (db) => kv.set(db, 'lock', { holder: 'the dead', at: 0 }),
  invariant: (_, outcomes) => {
    const holders = Object.entries(answersOf(outcomes)).filter(([, answer]) => answer === 'acquired')
    assert.equal(holders.length, 1, `${holders.length} hold the lock`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => acquire(db, 'alice'), bob: (db) => acquire(db, 'bob') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => acquireOrTakeOver(db, 'alice'), bob: (db) => acquireOrTakeOver(db, 'bob') },
    },
  ],
}
