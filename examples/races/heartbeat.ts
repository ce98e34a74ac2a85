import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
// On another connection, since nobody sees what a transaction writes before it commits.
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
  // A step, a heartbeat, a step.
  for (const change of ['step = 1', 'leased_until = 90', 'step = 2']) {
    const { rowCount } = await db.query(`update process set ${change} where id = 7 and claim = 1`)
    if (rowCount === 0) return 'lost the claim'
  }
  return 'done'
}
// #endregion

export const race: Race = {
  title: 'A heartbeat beside an open transaction',
  line: 'it waits for the transaction that it is to keep alive',
  claim:
    'The bus analysis: a process runs in one transaction, and a heartbeat renews its claim meanwhile, so that nobody takes a long process over.',
  fault:
    'The transaction has updated the row of the process, and holds it until COMMIT; the heartbeat updates the same row. Here the run awaits its heartbeat, and the heartbeat waits for the run, for ever: PostgreSQL sees no deadlock, because half of the circle is an `await`. Sent from a timer, as in the analysis, the heartbeat waits until COMMIT, when nobody needs it any more. Either way the poller that looks for stale claims stands behind the same lock.',
  remedy:
    'No transaction is open while the work is done. Each step and each heartbeat is a short statement of its own, and names the claim it belongs to. Once the poller has taken over, the next one matches no row, and the run stops.',
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
