import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const finish = (status: string) => (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select status from command where id = 1 for update')
    if (rows.length === 0) return 'unknown command'
    await tx.query('update command set status = $1 where id = 1', [status])
    return 'finished'
  })
// #endregion

// #region right
const finishAttempt = (status: string, attempt: number) => async (db: Pool) => {
  const { rowCount } = await db.query(
    `update command set status = $1 where id = 1 and status = 'IN_PROGRESS' and attempt = $2`,
    [status, attempt],
  )
  return rowCount === 1 ? 'finished' : 'not mine'
}
// #endregion

export const race: Race = {
  title: 'A lock is not a guard',
  claim:
    'An analysis of a command bus: finishing a command is guarded, since it takes the row with `for update` before it writes the outcome.',
  fault:
    'The lock decides who writes first, and then lets the other write as well: what it has read is looked at only for whether there is a row. The worker of attempt 2 completes the command; the worker of attempt 1, too slow to keep its message hidden, then fails and puts the command into the troubleshooting queue. It takes no bad timing: one after the other is enough.',
  remedy:
    'The write names what it may be applied to: a command in progress, and the attempt that this worker was given when it received it. Whoever does not hold that attempt any more matches no row.',
  tables: 'create table command (id int primary key, status text not null, attempt int not null)',
  setup: (db) => db.query(`insert into command values (1, 'IN_PROGRESS', 2)`),
  invariant: async (db) => {
    const { rows } = await db.query('select status from command')
    assert(rows[0].status === 'COMPLETED', `attempt 2 completed it, and it is ${rows[0].status}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { newer: finish('COMPLETED'), older: finish('TROUBLESHOOTING') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { newer: finishAttempt('COMPLETED', 2), older: finishAttempt('TROUBLESHOOTING', 1) },
    },
  ],
}
