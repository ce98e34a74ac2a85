import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

class Conflict extends Error {}

// #region wrong
const log = async (db: Pool, id: string) => {
  const acquired: string[] = []
  try {
    if (!(await kv.setIfAbsent(db, 'claim:k', { id }))) return
    acquired.push('claim:k')
    if (!(await kv.setIfAbsent(db, 'once:today', { id }))) {
      for (const key of acquired) await kv.del(db, key)
      throw new Conflict()
    }
    acquired.push('once:today')
    await kv.set(db, `event:${id}`, {})
  } catch (error) {
    for (const key of acquired) await kv.del(db, key)
    throw error
  }
}
// #endregion

// #region right
const logInOne = (db: Pool, id: string) =>
  inTransaction(db, async (tx) => {
    if (!(await kv.setIfAbsent(tx, 'claim:k', { id }))) return
    if (!(await kv.setIfAbsent(tx, 'once:today', { id }))) throw new Conflict()
    await kv.set(tx, `event:${id}`, {})
  })
// #endregion

/** Cancels what has the day, then sends the same request again. */
const again = (fn: typeof log) => async (db: Pool) => {
  await kv.del(db, 'once:today')
  await fn(db, 'B')
}

export const race: Race = {
  title: 'A claim, released twice',
  line: "another request's claim is deleted",
  claim:
    'The claim reference: keep a list of the claims, and release them all on any error. A conflict releases them and throws; the `catch` around it releases them again. Alice meets a conflict. Bob cancels what was in her way and sends the same request again.',
  fault:
    "After alice's first DELETE the key is free, and bob claims it. Her second DELETE takes bob's claim, though his event is there. One more repetition would make another event.",
  remedy:
    'ROLLBACK takes back what this transaction has done and nothing else, also when the process dies. A list kept by hand does not know whose the claims are by now. (To remember the conflict, store it instead of throwing, [as above](#a-claim-released-on-conflict).)',
  tables: kvTable,
  setup: (db) => kv.set(db, 'once:today', { id: 'other' }),
  invariant: async (db) => {
    const events = await db.query(`select from kv where key like 'event:%'`)
    const claims = await db.query(`select from kv where key = 'claim:k'`)
    assert(events.rowCount === claims.rowCount, `${events.rowCount} event, ${claims.rowCount} claims`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => log(db, 'A'), bob: again(log) },
      mayFail: (error) => error instanceof Conflict,
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => logInOne(db, 'A'), bob: again(logInOne) },
      mayFail: (error) => error instanceof Conflict,
    },
  ],
}
