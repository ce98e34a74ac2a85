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
  title: 'A claim that is released twice',
  claim:
    'The same reference takes several claims one after the other and keeps a list of them: "Release all locks on any error." On a conflict it releases them and throws; the `catch` around it releases them again. The request of alice meets a conflict; bob cancels what was in the way and sends the same request again.',
  fault:
    'After the first release the key is free, and bob claims it. The second release deletes the claim of bob, whose event is there. The next repetition will make another.',
  remedy:
    'ROLLBACK takes back what this transaction has done, once, and nothing else; a list of claims kept by hand cannot know whose they are by now. It also works when the process dies.',
  tables: kvTable,
  setup: (db) => kv.set(db, 'once:today', { id: 'other' }),
  invariant: async (db) => {
    const events = await db.query(`select from kv where key like 'event:%'`)
    const claims = await db.query(`select from kv where key = 'claim:k'`)
    assert.equal(events.rowCount, claims.rowCount, `${events.rowCount} event, ${claims.rowCount} claims`)
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
