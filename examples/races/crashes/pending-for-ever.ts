import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from '../in-transaction.js'
import { kv, kvTable } from '../kv.js'
import type { Crash } from './crash.js'

// #region wrong
const logPrayer = async (db: Pool) => {
  if (!(await kv.setIfAbsent(db, 'prayer:mia:today', { status: 'PENDING' }))) {
    const claim = await kv.get(db, 'prayer:mia:today')
    if (claim.status === 'ACTIVE') return `replayed: event ${claim.event}`
    throw new Error('somebody is about to log it: come back later')
  }
  await db.query(`insert into event values (1, 'mia')`)
  await kv.set(db, 'prayer:mia:today', { status: 'ACTIVE', event: 1 })
  return 'logged: event 1'
}
// #endregion

// #region right
const logPrayerAtOnce = (db: Pool) =>
  inTransaction(db, async (tx) => {
    // Whoever comes second waits here until the first has committed, or is gone.
    if (!(await kv.setIfAbsent(tx, 'prayer:mia:today', { event: 1 })))
      return `replayed: event ${(await kv.get(tx, 'prayer:mia:today')).event}`
    await tx.query(`insert into event values (1, 'mia')`)
    return 'logged: event 1'
  })
// #endregion

export const crash: Crash = {
  title: 'A claim, then the thing, then ACTIVE',
  line: 'a crash in between leaves PENDING for ever',
  claim:
    'The claim reference: `setIfAbsent` a claim that is PENDING, create the event, set the claim to ACTIVE. Whoever finds it PENDING is told to come back later. Claims of this kind have no end: an event must not be logged twice.',
  fault:
    'Each statement commits by itself. If the process ends after the first, the claim stands and nobody is left who would create the event. Every retry finds PENDING and is told to come back later, today and always.',
  remedy:
    'Claim and event commit together, or not at all. A crash takes the claim away with everything else, and the next one who comes gets it. PENDING is not needed: while the transaction is open, the unique key itself makes the others wait.',
  tables: `${kvTable};
    create table event (id int primary key, child text not null)`,
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as events from event')
    assert(rows[0].events === 1, `${rows[0].events} events`)
  },
  variants: [
    { name: 'wrong', failsAt: 'crash:after-1', run: logPrayer },
    { name: 'right', failsAt: null, run: logPrayerAtOnce },
  ],
}
