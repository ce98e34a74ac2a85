import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region shared
const release = (db: Pool, holder: string) =>
  db.query(`delete from kv where key = 'lock' and value->>'holder' = $1`, [holder])
// #endregion

// #region wrong
const acquire = async (db: Pool, holder: string) => {
  if (await kv.setIfAbsent(db, 'lock', { holder, at: 10 })) return 'acquired'
  const lock = await kv.get(db, 'lock')
  return lock.at < 10 - 3 ? 'stale' : 'busy'
}
// #endregion

// #region right
const acquireInOne = async (db: Pool, holder: string) => {
  const { rowCount } = await db.query(
    `insert into kv values ('lock', $1) on conflict (key) do update set value = $1
     where (kv.value->>'at')::int < 10 - 3`,
    [{ holder, at: 10 }],
  )
  return rowCount === 1 ? 'acquired' : 'busy'
}
// #endregion

const hold = (acquireLock: typeof acquire, holder: string) => async (db: Pool) => {
  if ((await acquireLock(db, holder)) === 'acquired') await release(db, holder)
}

export const race: Race = {
  title: 'The lock that is gone when it is looked at',
  line: 'a crash because the lock is free',
  claim:
    'The claim reference: if the lock is taken, read it, to see how old it is. (In seconds; it is 10.) Alice and bob each take the lock and release it.',
  fault:
    "Alice releases between bob's INSERT, which finds the lock taken, and his SELECT, which finds none. The lock is free, and he crashes.",
  remedy:
    'The statement that takes the lock also looks at its age; there is nothing left to look at afterwards. Whoever does look must be ready to find nothing.',
  tables: kvTable,
  setup: () => {},
  invariant: async (db) => {
    assert((await kv.get(db, 'lock')) === undefined, 'everybody is done, and the lock is taken')
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: hold(acquire, 'alice'), bob: hold(acquire, 'bob') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: hold(acquireInOne, 'alice'), bob: hold(acquireInOne, 'bob') },
    },
  ],
}
