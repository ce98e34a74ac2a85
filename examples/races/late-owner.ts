import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const takeOver = async (db: Pool): Promise<number | undefined> => {
  const { rows } = await db.query(
    `update job set claimed_by = 'bob', version = version + 1, is_silent = false
      where id = 1 and status = 'claimed' and is_silent returning version`,
  )
  return rows[0]?.version
}

const complete = (db: Pool, bot: string) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select claimed_by from job where id = 1')
    if (rows[0].claimed_by !== bot) return 'not mine'
    await tx.query(`update job set status = 'succeeded' where id = 1`)
    await tx.query('insert into result (job, bot) values (1, $1)', [bot])
    return 'done'
  })
// #endregion

// #region right
const completeWithFence = (db: Pool, bot: string, version: number) =>
  inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(
      `update job set status = 'succeeded' where id = 1 and status = 'claimed' and version = $1`,
      [version],
    )
    if (rowCount === 0) return 'not mine'
    await tx.query('insert into result (job, bot) values (1, $1)', [bot])
    return 'done'
  })
// #endregion

export const race: Race = {
  title: 'An owner, checked before the write',
  line: 'one job gets two results',
  claim:
    'The job fix: one statement claims a job, raises its `version` and returns it. The job of a silent bot goes to another. To complete a job, a bot checks in a transaction that the job is still its own, and writes.',
  fault:
    'Alice was only slow. She reads that the job is hers; bob takes it over and completes it; then her UPDATE, which names nothing but the id, succeeds. The version that would have stopped her is there, and nobody asks for it.',
  remedy:
    'The version is a fence: every write after a claim names the version of that claim, in the WHERE of the statement that writes. After a takeover it matches no row. The name of the bot would not do, since the same bot may claim the same job again.',
  tables: `
    create table job (id int primary key, status text not null, claimed_by text, version int not null, is_silent boolean not null);
    create table result (job int not null, bot text not null)`,
  setup: (db) => db.query(`insert into job values (1, 'claimed', 'alice', 1, true)`),
  invariant: async (db) => {
    const { rows } = await db.query(
      `select claimed_by, (select string_agg(bot, ' and ' order by bot) from result) as bots from job`,
    )
    const { claimed_by, bots } = rows[0]
    assert(bots === claimed_by, `the job is ${claimed_by}'s, and has a result of ${bots}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: {
        alice: (db) => complete(db, 'alice'),
        bob: async (db) => ((await takeOver(db)) ? complete(db, 'bob') : 'nothing to do'),
      },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: {
        alice: (db) => completeWithFence(db, 'alice', 1),
        bob: async (db) => {
          const version = await takeOver(db)
          return version ? completeWithFence(db, 'bob', version) : 'nothing to do'
        },
      },
    },
  ],
}
