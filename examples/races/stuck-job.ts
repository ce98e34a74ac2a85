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
  title: '`SKIP LOCKED` against a stuck job',
  line: 'nothing is claimed any more',
  claim:
    "The job fix: a job was `pending` while a bot's row still pointed at it. Every bot failed on that job, the oldest, and nothing was claimed any more. The cure is said to be `for update skip locked` in the claim. Here carol, long gone, still points at job 1.",
  fault:
    'Nobody has locked the stuck job, so there is nothing to skip. Alice claims it, the unique key on `current_job` refuses her second statement, and the rollback makes it the oldest pending job again, for bob. Job 2 is never reached.',
  remedy:
    "One row says who has a job: the job's own. Two rows that must agree can disagree; one cannot. On the same rows, stale pointer and all, both jobs are claimed. A unique index on the job still keeps each bot to one.",
  tables: `
    create table job (id int primary key, status text not null default 'pending', claimed_by text,
      check ((status = 'pending') = (claimed_by is null)));
    create unique index on job (claimed_by) where status = 'claimed';
    create table bot (name text primary key, current_job int unique references job)`,
  // The state of the incident: carol was given up for dead and job 1 put back, but carol's row still names it.
  setup: (db) =>
    db.query(`insert into job values (1), (2);
              insert into bot values ('alice', null), ('bob', null), ('carol', 1)`),
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
      actors: { alice: claim('alice'), bob: claim('bob') },
      // A bot survives a failed claim, and so the invariant shows what it costs.
      mayFail: (error) => (error as { code?: string }).code === '23505',
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: claimInOnePlace('alice'), bob: claimInOnePlace('bob') },
    },
  ],
}
