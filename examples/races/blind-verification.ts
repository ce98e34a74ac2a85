import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const verify = async (db: Pool) => {
  const { rows } = await db.query(`
    select (select count(*) from job where status = 'pending' and claimed_by is not null)
         + (select count(*) from job where status = 'claimed' and claimed_by is null)
         + (select count(*) from bot where current_job not in (select id from job))
         + (select count(current_job) - count(distinct current_job) from bot) as n`)
  return Number(rows[0].n)
}
// #endregion

// #region in two reads
const compare = async (db: Pool) => {
  const jobs = await db.query('select id, claimed_by from job')
  const bots = await db.query('select name, current_job from bot where current_job is not null')
  const holder = new Map(jobs.rows.map(({ id, claimed_by }) => [id, claimed_by]))
  return bots.rows.filter(({ name, current_job }) => holder.get(current_job) !== name).length
}

const claim = (db: Pool) =>
  inTransaction(db, async (tx) => {
    await tx.query(`update job set status = 'claimed', claimed_by = 'alice' where id = 2`)
    await tx.query(`update bot set current_job = 2 where name = 'alice'`)
  })
// #endregion

// #region right
const compareInOne = async (db: Pool) => {
  const { rows } = await db.query(`
    select (select count(*) from bot join job on job.id = bot.current_job
             where (job.status, job.claimed_by) is distinct from ('claimed', bot.name))
         + (select count(*) from job left join bot on bot.name = job.claimed_by
             where job.status = 'claimed' and bot.current_job is distinct from job.id) as n`)
  return Number(rows[0].n)
}
// #endregion

export const race: Race = {
  title: 'A consistency check, table by table',
  line: 'it reports 0 on the broken rows',
  claim:
    'The job fix: four queries must return 0, and then the data are consistent. They count pending jobs with an owner, claimed jobs without one, bots whose job does not exist, and jobs with two bots.',
  fault:
    "The incident was that two tables disagreed: carol's row names job 1, and job 1 is pending. Three of the queries look at one table each, and the other asks only whether the job exists. All of them return 0, and the constraints accept the rows.",
  remedy:
    'One statement compares the tables, in both directions. It sees one snapshot, and a claim commits its two rows together, so it reports the broken pair and never a claim that is under way. Better still is to have nothing to compare: [one row that says who has the job](#skip-locked-against-a-stuck-job).',
  tables: `
    create table job (id int primary key, status text not null default 'pending', claimed_by text,
      check ((status = 'pending') = (claimed_by is null)));
    create table bot (name text primary key, current_job int unique references job)`,
  setup: (db) =>
    db.query(`insert into job values (1), (2); insert into bot values ('alice', null), ('carol', 1)`),
  invariant: (_db, { operator }) => {
    const found = operator?.status === 'fulfilled' ? operator.value : undefined
    assert(found === 1, `one bot and its job disagree, and the check reports ${found}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', isSerial: true, actors: { operator: verify, alice: claim } },
    {
      name: 'in two reads',
      title: 'Still wrong: both tables, in two reads',
      text: "This errs the other way. Alice's claim commits between the two SELECTs, and is reported as broken though it is healthy.",
      verdict: 'race',
      actors: { operator: compare, alice: claim },
    },
    { name: 'right', verdict: 'passed', actors: { operator: compareInOne, alice: claim } },
  ],
}
