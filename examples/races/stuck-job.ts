import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const claim = (bot: string) => (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query(
      `update job set status = 'claimed', claimed_by = $1
        where id = (select id from job where status = 'pending' order by id limit 1 for update skip locked)
          and status = 'pending'
       returning id`,
      [bot],
    )
    if (rows.length === 0) return 'no job'
    await tx.query('update bot set current_job = $2 where name = $1', [bot, rows[0].id])
    return `job ${rows[0].id}`
  })
// #endregion

// #region right
// The job says who has it, and nothing else does. `bot.current_job` is neither written nor read.
const claimInOnePlace = (bot: string) => async (db: Pool) => {
  const { rows } = await db.query(
    `update job set status = 'claimed', claimed_by = $1
      where id = (select id from job where status = 'pending' order by id limit 1 for update skip locked)
     returning id`,
    [bot],
  )
  return rows.length === 0 ? 'no job' : `job ${rows[0].id}`
}
// #endregion

export const race: Race = {
  title: 'The stuck job that SKIP LOCKED does not skip',
  claim:
    'A fix for a job system’s races: a job was `pending` although a bot’s row still pointed at it, every bot failed on that oldest job, and nothing was claimed any more. `for update skip locked` in the claim is said to be the cure: “No waiting, no deadlocks, no race conditions.”',
  fault:
    'SKIP LOCKED passes over rows that are locked, and nobody has locked the stuck job. So ann’s UPDATE claims it, the unique index refuses her second statement, which points her row at it, and the rollback makes it the oldest pending job again, for bob. It takes no bad timing: the first bot fails with nobody in between. The good job behind it is never reached.',
  remedy:
    'Who has a job stands in one place, the row of the job. Two rows that must agree can disagree, and one cannot: there is no pointer left that could refuse the claim, and the same rows are drained. One job for each bot is still guarded, by a unique index on the job.',
  tables: `
    create table job (id int primary key, status text not null default 'pending', claimed_by text,
      check ((status = 'pending') = (claimed_by is null)));
    create unique index on job (claimed_by) where status = 'claimed';
    create table bot (name text primary key, current_job int unique references job)`,
  // The state of the incident: cid was given up for dead and job 1 put back, but cid's row still names it.
  setup: (db) =>
    db.query(`insert into job values (1), (2);
              insert into bot values ('ann', null), ('bob', null), ('cid', 1)`),
  invariant: async (db) => {
    const { rows } = await db.query(`select id from job where status = 'pending' order by id`)
    assert(
      rows.length === 0,
      `two bots asked, and still pending: jobs ${rows.map(({ id }) => id).join(', ')}`,
    )
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { ann: claim('ann'), bob: claim('bob') },
      // A bot survives a failed claim, and so the invariant shows what it costs.
      mayFail: (error) => (error as { code?: string }).code === '23505',
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { ann: claimInOnePlace('ann'), bob: claimInOnePlace('bob') },
    },
  ],
}
