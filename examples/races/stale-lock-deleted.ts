import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
// Seconds. Somebody took the lock at 0 and died; it is 10 now.
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
  line: 'two hold the lock',
  claim:
    'The claim reference: a lock older than three seconds was left by a crash. Delete it, and try again.',
  fault:
    "Both see the stale lock. Alice deletes it and acquires. Then bob deletes, and what he deletes is not what he has seen: it is alice's fresh lock.",
  remedy:
    'One statement takes the lock if it is free or stale. A second one waits for it, looks at the newest version of the row, which is fresh, and takes nothing.',
  tables: kvTable,
  setup: (db) => kv.set(db, 'lock', { holder: 'the dead', at: 0 }),
  invariant: (_, outcomes) => {
    const holders = Object.entries(answersOf(outcomes)).filter(([, answer]) => answer === 'acquired')
    assert(holders.length === 1, `${holders.length} hold the lock`)
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
