import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region shared
const award = (db: Pool) =>
  db.query(
    `update kv set value = value || jsonb_build_object('points', (value->>'points')::int + 5) where key = 'child'`,
  )
// #endregion

// #region wrong
const changeAvatar = async (db: Pool) => {
  const child = await kv.get(db, 'child')
  await kv.set(db, 'child', { ...child, avatar: 'owl' })
}
// #endregion

// #region right
const patchAvatar = (db: Pool) =>
  db.query(`update kv set value = value || '{"avatar": "owl"}' where key = 'child'`)
// #endregion

export const race: Race = {
  title: 'An object, merged and written back',
  line: 'five points are awarded, and gone',
  claim:
    "The claim reference: for a name or an avatar an overwrite now and then does no harm, so read the object, merge, and write it back. Not for points. But a child's points are in the same object.",
  fault:
    "Bob awards five points, in one correct statement, between alice's SELECT and her INSERT. She writes the whole object back, with the points as she has read them.",
  remedy: 'Write what you change, and nothing else. `||` puts it into the newest version of the row.',
  tables: kvTable,
  setup: (db) => kv.set(db, 'child', { avatar: 'cat', points: 0 }),
  invariant: async (db) => {
    const child = await kv.get(db, 'child')
    assert(child.avatar === 'owl', `the avatar is ${child.avatar}`)
    assert(child.points === 5, `5 points were awarded, and there are ${child.points}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: changeAvatar, bob: award } },
    { name: 'right', verdict: 'passed', actors: { alice: patchAvatar, bob: award } },
  ],
}
