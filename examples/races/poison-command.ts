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
  // If there is a row, the handler runs, and takes the process down before a `catch` could compare the attempts.
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
  // The handler runs if it is IN_PROGRESS.
  return rows[0]?.status
}
// #endregion

export const race: Race = {
  title: 'A limit of attempts, checked in `catch`',
  line: 'a command that kills its worker has no limit',
  claim:
    'The bus analysis: if a worker crashes, its message comes back, its attempts are counted, and after too many it goes to the troubleshooting queue. No risk is seen.',
  fault:
    'Attempts are counted when a command is received, and compared with the limit when its handler throws. A handler that takes its process down throws nothing. Alice receives the command for the third time of three, bob for the fourth, and so on through all workers.',
  remedy:
    'The statement that counts an attempt also refuses one too many, and parks the command. It needs no survivor.',
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
    { name: 'wrong', verdict: 'race', isSerial: true, actors: { alice: receive(0), bob: receive(31) } },
    { name: 'right', verdict: 'passed', actors: { alice: receiveOrPark(0), bob: receiveOrPark(31) } },
  ],
}
