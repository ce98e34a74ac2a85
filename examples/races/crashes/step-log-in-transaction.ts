import assert from 'node:assert/strict'
import { recordEffects } from 'dibs/testing'
import type { Pool } from 'pg'
import { inTransaction } from '../in-transaction.js'
import { type Crash, clockTable } from './crash.js'

/** A carrier that takes every call for a new one. */
const carrier = recordEffects()

// #region shared
const ship = () => carrier.perform('ship', 'order 7')
// #endregion

// #region wrong
const resume = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query(`select status from step where name = 'ship'`)
    if (rows[0]?.status === 'DONE') return 'shipped before'
    if (rows[0]?.status === 'STARTED') return 'in doubt: somebody has to look'
    await tx.query(`insert into step values ('ship', 'STARTED', 0)`)
    await ship()
    await tx.query(`update step set status = 'DONE' where name = 'ship'`)
    return 'shipped'
  })
// #endregion

// #region right
const resumeInSteps = async (db: Pool) => {
  const begun = await db.query(
    `insert into step select 'ship', 'STARTED', now + 30 from clock on conflict do nothing`,
  )
  if (begun.rowCount === 0) {
    // Whoever began it is done with it, or at it, or gone. Nobody knows whether it was shipped, and it is not tried again.
    const { rows } = await db.query(
      `update step set status = 'IN DOUBT' from clock
        where name = 'ship' and status = 'STARTED' and until <= now returning status`,
    )
    return rows.length > 0 ? 'in doubt: somebody has to look' : 'shipped, or about to be'
  }
  await ship()
  const { rowCount } = await db.query(
    `update step set status = 'DONE' where name = 'ship' and status = 'STARTED'`,
  )
  return rowCount === 1 ? 'shipped' : 'shipped, and somebody will look'
}
// #endregion

export const crash: Crash = {
  title: 'A step log inside the transaction',
  line: 'the record goes with the crash that it is for',
  claim:
    'The bus analysis: before a step a record says STARTED, after it DONE; after a crash the record tells how far the process came. All of it, outside calls included, is one transaction, "so that it is atomic".',
  fault:
    'Nobody ever sees STARTED: it is committed together with DONE, or not at all. If the process ends after the parcel has left and before COMMIT, the record is rolled back and the parcel is not. The step runs again.',
  remedy:
    'STARTED is committed before the call, and DONE after it, each in a statement of its own. After a crash in between, the record is all that is known: it was begun. This carrier cannot be asked and does not know our order numbers, so the step goes to somebody who looks. With one that takes an idempotency key it could simply be run again, with the same key.',
  tables: `${clockTable};
    create table step (name text primary key, status text not null, until int not null)`,
  effects: carrier,
  setup: (db) => db.query('insert into clock values (0)'),
  advance: (db) => db.query('update clock set now = now + 60'),
  progress: async (db) => {
    const { rows } = await db.query('select status from step')
    return rows[0]?.status === 'DONE' || rows[0]?.status === 'IN DOUBT'
  },
  invariant: async (db) => {
    const { rows } = await db.query('select status from step')
    assert(rows[0].status !== 'DONE' || carrier.count('ship') === 1, 'DONE, and nothing was shipped')
  },
  variants: [
    { name: 'wrong', failsAt: 'crash:before-3', run: resume },
    { name: 'right', failsAt: null, run: resumeInSteps },
  ],
}
