import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from '../in-transaction.js'
import { kv, kvTable } from '../kv.js'
import type { Crash } from './crash.js'

// #region wrong
const create = async (db: Pool) => {
  if (!(await kv.setIfAbsent(db, 'request:7', { status: 'PENDING' }))) return 'created before'
  try {
    await db.query('insert into event (request) values (7)')
    await kv.set(db, 'request:7', { status: 'ACTIVE' })
    return 'created'
  } catch (error) {
    await kv.del(db, 'request:7') // so that a retry is possible
    throw error
  }
}
// #endregion

// #region right
const createAtOnce = (db: Pool) =>
  inTransaction(db, async (tx) => {
    if (!(await kv.setIfAbsent(tx, 'request:7', {}))) return 'created before'
    await tx.query('insert into event (request) values (7)')
    return 'created'
  })
// #endregion

export const crash: Crash = {
  title: 'A `catch` that releases the claims',
  line: 'it releases them though the thing exists',
  claim:
    'The claim reference: on any error, delete all claims that were taken, so that the request can be tried again.',
  fault:
    'The event was created, and the statement that would have said so failed. The `catch` does not know how far it came: it deletes the claim of an event that exists, and the retry creates a second one. No crash is needed, an error is enough.',
  remedy:
    'PostgreSQL undoes what a transaction did, exactly as far as it came. There is nothing to release by hand. Where the answer to COMMIT is lost, the claim and the event are both there, or neither.',
  tables: `${kvTable};
    create table event (id int generated always as identity primary key, request int not null)`,
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as events from event')
    assert(rows[0].events === 1, `${rows[0].events} events of one request`)
  },
  variants: [
    // What a crash does to a claim that is PENDING is told elsewhere.
    { name: 'wrong', failsAt: 'error:before-3:40001', run: create, modes: ['error'], errors: ['40001'] },
    { name: 'right', failsAt: null, run: createAtOnce },
  ],
}
