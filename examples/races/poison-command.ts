import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const receive = (now: number) => async (db: Pool) => {
  const { rows } = await db.query(
    `update command set status = 'IN_PROGRESS', attempts = attempts + 1, hidden_until = $1::int + 30
      where id = 1 and hidden_until <= $1 and status not in ('COMPLETED', 'CANCELED')
     returning status`,
    [now],
  )
  // The handler runs if there is a row, and takes the process down: the `catch` that looks at max_attempts does not run.
  return rows[0]?.status
}
// #endregion

// #region right
const receiveOrPark = (now: number) => async (db: Pool) => {
  const { rows } = await db.query(
    `update command set attempts = attempts + 1, hidden_until = $1::int + 30,
            status = case when attempts < max_attempts then 'IN_PROGRESS' else 'TROUBLESHOOTING' end
      where id = 1 and hidden_until <= $1 and status in ('PENDING', 'IN_PROGRESS')
     returning status`,
    [now],
  )
  return rows[0]?.status
}
// #endregion

export const race: Race = {
  title: 'The command that kills its worker',
  claim:
    'An analysis of a command bus: if a worker crashes, the message comes back, its attempts are counted, and it “eventually moves” to the troubleshooting queue once there were too many. Risk: none.',
  fault:
    'Attempts are counted when a command is received, and compared with their maximum when a handler throws. A handler that takes its process down throws nothing. So the command is received by ann for the third time of three, by bob for the fourth, and so on, one worker after the other.',
  remedy:
    'The statement that counts an attempt also refuses one too many, and parks the command. It needs nobody who survives.',
  tables: `create table command (id int primary key, status text not null,
    attempts int not null, max_attempts int not null, hidden_until int not null)`,
  // Two attempts of three are used up, and the message is visible again.
  setup: (db) => db.query(`insert into command values (1, 'IN_PROGRESS', 2, 3, 0)`),
  invariant: (_db, outcomes) => {
    const begun = Object.values(outcomes).filter(
      (it) => it.status === 'fulfilled' && it.value === 'IN_PROGRESS',
    )
    assert(2 + begun.length <= 3, `attempt ${2 + begun.length} of 3 has begun`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', isSerial: true, actors: { ann: receive(0), bob: receive(31) } },
    { name: 'right', verdict: 'passed', actors: { ann: receiveOrPark(0), bob: receiveOrPark(31) } },
  ],
}
