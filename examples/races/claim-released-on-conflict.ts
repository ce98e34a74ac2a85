import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
const log = async (db: Pool) => {
  if (!(await kv.setIfAbsent(db, 'claim:k', {}))) return 'logged'
  if (!(await kv.setIfAbsent(db, 'once:today', { by: 'alice' }))) {
    await kv.del(db, 'claim:k')
    return 'conflict'
  }
  return 'logged'
}
// #endregion

// #region right
const logAndRemember = (db: Pool) =>
  inTransaction(db, async (tx) => {
    if (!(await kv.setIfAbsent(tx, 'claim:k', {}))) return (await kv.get(tx, 'claim:k')).outcome
    const isFirst = await kv.setIfAbsent(tx, 'once:today', { by: 'alice' })
    const outcome = isFirst ? 'logged' : 'conflict'
    await kv.set(tx, 'claim:k', { outcome })
    return outcome
  })
// #endregion

/** The first answer is lost on its way, so the client sends the request again, with the same key. */
const twice = (fn: (db: Pool) => Promise<unknown>) => async (db: Pool) => [await fn(db), await fn(db)]

const cancel = (db: Pool) => kv.del(db, 'once:today')

export const race: Race = {
  title: 'A claim, released on conflict',
  line: 'one key gets two answers',
  claim:
    "The claim reference: one event a day. A request that finds the day taken deletes its idempotency claim and reports the conflict. The day is bob's, and he cancels. Alice sends her request twice, since the first answer is lost on its way.",
  fault:
    "The claim was all that anybody knew of the request. Alice meets bob's event and is refused; he cancels; her repetition, which should get the same answer, is executed.",
  remedy:
    'A conflict is an outcome too. It is stored under the key, and a repetition gets it again. A request that dies before it has an outcome leaves no claim, since its transaction rolls back.',
  tables: kvTable,
  setup: (db) => kv.set(db, 'once:today', { by: 'bob' }),
  invariant: (_, outcomes) => {
    const [first, second] = answersOf(outcomes).alice as string[]
    assert(first === second, `first answer: ${first}; the same request again: ${second}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: twice(log), bob: cancel } },
    { name: 'right', verdict: 'passed', actors: { alice: twice(logAndRemember), bob: cancel } },
  ],
}
