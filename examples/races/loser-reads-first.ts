import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
const create = async (db: Pool, id: string) => {
  if (!(await kv.setIfAbsent(db, 'claim:k', { id, status: 'PENDING' }))) {
    const claim = await kv.get(db, 'claim:k')
    return kv.get(db, claim.id)
  }
  await kv.set(db, id, { id })
  await kv.set(db, 'claim:k', { id, status: 'ACTIVE' })
  return { id }
}
// #endregion

// #region right
const createInOne = (db: Pool, id: string) =>
  inTransaction(db, async (tx) => {
    if (!(await kv.setIfAbsent(tx, 'claim:k', { id }))) {
      const claim = await kv.get(tx, 'claim:k')
      return kv.get(tx, claim.id)
    }
    await kv.set(tx, id, { id })
    return { id }
  })
// #endregion

export const race: Race = {
  title: 'A claim, committed before its result',
  line: 'the loser gets nothing, as a success',
  claim: 'The claim reference: claim first, then create. Whoever loses the claim returns what is there.',
  fault:
    'A claim says that somebody is about to create the event, not that it is there. Bob loses, looks for the event before alice has committed it, and returns nothing.',
  remedy:
    'Claim and event are committed together. The loser waits at the claim until both are there, or neither. Where the work is too long for a transaction, PENDING must be an answer of its own: in progress, ask again.',
  tables: kvTable,
  setup: () => {},
  invariant: (_, outcomes) => {
    const { alice, bob } = answersOf(outcomes) as Record<string, { id: string } | undefined>
    assert(alice && bob, `${alice ? 'bob' : 'alice'} got no event`)
    assert(alice.id === bob.id, `alice got ${alice.id}, and bob ${bob.id}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => create(db, 'A'), bob: (db) => create(db, 'B') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => createInOne(db, 'A'), bob: (db) => createInOne(db, 'B') },
    },
  ],
}
