import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import type { Race } from './race.js'

// #region shared
// Seconds. The worker starts at 0 and is slow; the monitor looks at 180.
const start = (db: Pool) =>
  db.query(`update task set status = 'executing', started_at = 0 where id = 1 and status = 'ready'`)

const monitor = async (db: Pool) => {
  const { rowCount } = await db.query(
    `update task set status = 'failed' where status = 'executing' and started_at < 180 - 120`,
  )
  return rowCount === 1 ? 'failed' : 'nothing stuck'
}
// #endregion

// #region wrong
const work = async (db: Pool) => {
  await start(db)
  await db.query(`update task set status = 'completed' where id = 1`)
  return 'completed'
}
// #endregion

// #region right
const workGuarded = async (db: Pool) => {
  await start(db)
  const { rowCount } = await db.query(
    `update task set status = 'completed' where id = 1 and status = 'executing'`,
  )
  return rowCount === 1 ? 'completed' : 'too late'
}
// #endregion

export const race: Race = {
  title: 'A monitor that fails slow workers',
  line: 'a task is reported as failed, and then completed',
  claim:
    'The pod standard: to recover from crashes, a monitor fails every task that has been executing for more than two minutes. A worker that is done writes `completed`, by id.',
  fault:
    'A slow worker looks like a dead one. The monitor fails its task and reports that; then the worker completes the failed task.',
  remedy:
    'The UPDATE names the status it starts from, so a task ends once, and a worker that comes too late is told. Where failed tasks are given out again, `executing` may be true of another worker: then name the attempt too, as in the next race. And let a live worker renew its time, so that the monitor leaves it alone.',
  tables: 'create table task (id int primary key, status text not null, started_at int)',
  setup: (db) => db.query(`insert into task values (1, 'ready')`),
  invariant: async (_, outcomes) => {
    const answers = answersOf(outcomes)
    assert(
      !(answers.worker === 'completed' && answers.monitor === 'failed'),
      'the task has failed, and it is completed',
    )
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { worker: work, monitor } },
    { name: 'right', verdict: 'passed', actors: { worker: workGuarded, monitor } },
  ],
}
