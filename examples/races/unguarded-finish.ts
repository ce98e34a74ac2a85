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
  title: 'A row lock in place of a guard',
  line: 'a completed command goes to troubleshooting',
  claim:
    'The bus analysis: finishing a command is safe, since it takes the row with `for update` before it writes the outcome.',
  fault:
    'The lock decides who writes first, and then lets the other write as well: the status that was read is not looked at. The worker of attempt 2 completes the command. Then the worker of attempt 1, whose message came back while it was busy, fails and sends the command to troubleshooting.',
  remedy:
    'The UPDATE names what it may be applied to: a command in progress, and the attempt that this worker was given. Whoever no longer holds that attempt matches no row.',
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
