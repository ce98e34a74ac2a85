import type { CrashInstance } from 'dibs/testing'
import type { Pool } from 'pg'
import { type Crash, clockTable } from './crash.js'

// #region shared
/** An image of this size takes more memory than there is: the process is killed. */
const render = ({ die }: CrashInstance) => die()
// #endregion

// #region wrong
const work = async (db: Pool, process: CrashInstance) => {
  const { rows } = await db.query(
    `update message set hidden_until = now + 30 from clock
      where status = 'READY' and hidden_until <= now returning id`,
  )
  if (rows.length === 0) return
  try {
    await render(process)
    await db.query(`update message set status = 'DONE'`)
  } catch {
    await db.query(
      `update message set attempts = attempts + 1, status = case when attempts >= 2 then 'DEAD' else 'READY' end`,
    )
  }
}
// #endregion

// #region right
const workAndCount = async (db: Pool, process: CrashInstance) => {
  const { rows } = await db.query(
    `update message set attempts = attempts + 1, hidden_until = now + 30,
            status = case when attempts >= 3 then 'DEAD' else status end
       from clock where status = 'READY' and hidden_until <= now returning status`,
  )
  if (rows[0]?.status !== 'READY') return
  await render(process)
  await db.query(`update message set status = 'DONE'`)
}
// #endregion

export const crash: Crash = {
  title: 'Attempts that are counted in `catch`',
  line: 'a message that kills its worker comes back for ever',
  claim:
    'The bus analysis: a failed message is tried three times and then put aside. "Eventually moves to the troubleshooting queue; risk: none."',
  fault:
    'A handler that throws is counted, and one that takes the process down is not. The message comes back, kills the next worker, and the next. Nothing has to be injected: it goes wrong by itself.',
  remedy:
    'The statement that hands the message out counts the attempt, and puts it aside in place of a fourth.',
  tables: `${clockTable};
    create table message (id int primary key, status text not null, attempts int not null, hidden_until int not null)`,
  setup: (db) => db.query(`insert into clock values (0); insert into message values (7, 'READY', 0, 0)`),
  advance: (db) => db.query('update clock set now = now + 60'),
  progress: async (db) => {
    const { rows } = await db.query(`select from message where status <> 'READY'`)
    return rows.length === 1
  },
  bound: { recoveries: 6 },
  variants: [
    { name: 'wrong', failsAt: 'none', run: work },
    { name: 'right', failsAt: null, run: workAndCount },
  ],
}
