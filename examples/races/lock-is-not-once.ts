import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import { kv, kvTable } from './kv.js'
import type { Race } from './race.js'

// #region wrong
const report = async (db: Pool, instance: string) => {
  if (!(await kv.setIfAbsent(db, 'lock:report', { instance }))) return
  try {
    await db.query(`insert into run values ('report', 'monday')`) // the job
  } finally {
    await db.query(`delete from kv where key = 'lock:report' and value->>'instance' = $1`, [instance])
  }
}
// #endregion

// #region right
const reportOnce = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(`insert into slot values ('report', 'monday') on conflict do nothing`)
    if (rowCount === 1) await tx.query(`insert into run values ('report', 'monday')`) // the job
  })
// #endregion

export const race: Race = {
  title: 'A lock around a scheduled job',
  line: 'the job runs twice, with no race at all',
  claim:
    'The NestJS patterns: under a distributed lock, only one instance runs a scheduled job. (Here its holder even releases it correctly.)',
  fault:
    'A lock keeps two instances from running at the same time. Alice runs the job and is done; a moment later bob runs it again.',
  remedy:
    'What must happen once is a row with a unique key: this job, this day. It is committed with the work, and it stays. Take the day from the schedule, not from the clock of the instance.',
  tables: `
    ${kvTable};
    create table slot (job text, day text, primary key (job, day));
    create table run (job text not null, day text not null)`,
  setup: () => {},
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as runs from run')
    assert(rows[0].runs === 1, `the report of monday ran ${rows[0].runs} times`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { alice: (db) => report(db, 'alice'), bob: (db) => report(db, 'bob') },
    },
    { name: 'right', verdict: 'passed', actors: { alice: reportOnce, bob: reportOnce } },
  ],
}
