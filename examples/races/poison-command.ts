import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const receive = (now: number) => async (db: Pool) => {
  await db.query(
    `update command set status = 'IN_PROGRESS', attempts = attempts + 1, hidden_until = $1::int + 30
      where id = 1 and hidden_until <= $1 and status not in ('COMPLETED', 'CANCELED')`,
    [now],
  )
  // The handler follows. It takes the process down with it, so the `catch` that looks at max_attempts never runs.
}
// #endregion

// #region right
const receiveOrPark = (now: number) => async (db: Pool) => {
  await db.query(
    `update command set
       status = case when attempts < max_attempts then 'IN_PROGRESS' else 'TROUBLESHOOTING' end,
       attempts = least(attempts + 1, max_attempts), hidden_until = $1::int + 30
      where id = 1 and hidden_until <= $1 and status in ('PENDING', 'IN_PROGRESS')`,
    [now],
  )
}
// #endregion

export const race: Race = {
  title: 'The command that kills its worker',
  claim:
    'An analysis of a command bus: if a worker crashes, the message comes back, its attempts are counted, and it “eventually moves” to the troubleshooting queue once there were too many. Risk: none.',
  fault:
    'Attempts are counted when a command is received, and compared with their maximum when a handler throws. A handler that takes its process down throws nothing. So the command is received by ann for the third time of three, by bob for the fourth, and so on, one worker after the other.',
  remedy: 'The statement that counts an attempt also refuses one too many. It needs nobody who survives.',
  tables: `create table command (id int primary key, status text not null,
    attempts int not null, max_attempts int not null, hidden_until int not null)`,
  setup: (db) => db.query(`insert into command values (1, 'IN_PROGRESS', 2, 3, 0)`),
  invariant: async (db) => {
    const { rows } = await db.query('select status, attempts, max_attempts from command')
    const { status, attempts, max_attempts } = rows[0]
    assert(attempts <= max_attempts, `attempt ${attempts} of ${max_attempts}, and it is ${status}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', isSerial: true, actors: { ann: receive(0), bob: receive(31) } },
    { name: 'right', verdict: 'passed', actors: { ann: receiveOrPark(0), bob: receiveOrPark(31) } },
  ],
}
