import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
const claim = async (db: Pool, pod: string) => {
  if (await kv.get(db, 'import:monday')) return 'somebody else does it'
  await kv.set(db, 'import:monday', { pod })
  return 'we import'
}
// #endregion

// #region right
const claimFirst = async (db: Pool, pod: string) =>
  (await kv.setIfAbsent(db, 'import:monday', { pod })) ? 'we import' : 'somebody else does it'
// #endregion

const both = (fn: (db: Pool, pod: string) => Promise<string>) => ({
  alice: (db: Pool) => fn(db, 'alice'),
  bob: (db: Pool) => fn(db, 'bob'),
})

export const race: Race = {
  title: 'A key, looked at and then set',
  line: 'both are told that it is theirs',
  claim: 'Common practice: two pods are to share out work. Look whether the key is there; if not, set it.',
  fault:
    "Bob looks and sets between alice's SELECT and her INSERT. She has seen nothing, so she sets too, over what he wrote, and both go to work.",
  remedy:
    'Claim first, and act on the answer. The unique key lets one INSERT through; the other waits until it is committed, and inserts nothing.',
  tables: kvTable,
  setup: () => {},
  invariant: (_, outcomes) => {
    const winners = Object.values(answersOf(outcomes)).filter((answer) => answer === 'we import')
    assert(winners.length === 1, `${winners.length} import`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: both(claim) },
    { name: 'right', verdict: 'passed', actors: both(claimFirst) },
  ],
}
