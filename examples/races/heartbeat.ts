import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
// On a connection of its own, since nobody sees what a transaction writes before it commits.
const beat = (db: Pool) => db.query('update process set leased_until = 90 where id = 7')

const run = (db: Pool) =>
  inTransaction(db, async (tx) => {
    await tx.query('update process set step = 1 where id = 7')
    await beat(db)
    await tx.query('update process set step = 2 where id = 7')
    return 'done'
  })

const takeOver = async (db: Pool) => {
  const { rowCount } = await db.query(
    'update process set claim = 2, leased_until = 120, step = 0 where id = 7 and leased_until <= 60',
  )
  return rowCount === 1 ? 'taken over' : 'nothing is stale'
}
// #endregion

// #region right
const runInSteps = async (db: Pool) => {
  await db.query('update process set step = 1 where id = 7 and claim = 1')
  await db.query('update process set leased_until = 90 where id = 7 and claim = 1')
  const { rowCount } = await db.query('update process set step = 2 where id = 7 and claim = 1')
  return rowCount === 1 ? 'done' : 'lost the claim'
}
// #endregion

export const race: Race = {
  title: 'The heartbeat that waits for its own transaction',
  claim:
    'An analysis of a command bus: a process runs in one transaction, and a heartbeat renews its claim meanwhile, so that long processes are not given to somebody else.',
  fault:
    'The transaction has updated the row of the process and keeps it locked until it commits; the heartbeat updates the same row. Here the run awaits its heartbeat, the heartbeat waits for the run, and both wait for ever: PostgreSQL sees no deadlock, because half of the circle is an `await`. From a timer, as in the analysis, the heartbeat waits alone, until the COMMIT, when nobody needs it any more. Either way the poller that looks for stale claims stands behind the same lock.',
  remedy:
    'No transaction is open while the work is done. Each step and each heartbeat is a short statement by itself, and names the claim it belongs to. If the poller was faster than the heartbeat, what follows matches no row, and the run knows it.',
  tables:
    'create table process (id int primary key, claim int not null, leased_until int not null, step int not null)',
  setup: (db) => db.query('insert into process values (7, 1, 60, 0)'),
  invariant: async (db, { run, poller }) => {
    const told = [run, poller].map((outcome) => outcome?.status === 'fulfilled' && outcome.value).join(', ')
    const { rows } = await db.query('select claim, leased_until, step from process')
    const left = Object.values(rows[0]).join(', ')
    const isRight =
      told === 'done, nothing is stale'
        ? left === '1, 90, 2'
        : told === 'lost the claim, taken over' && left === '2, 120, 0'
    assert(isRight, `told: ${told}; claim, leased_until, step: ${left}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { run, poller: takeOver } },
    { name: 'right', verdict: 'passed', actors: { run: runInSteps, poller: takeOver } },
  ],
}
