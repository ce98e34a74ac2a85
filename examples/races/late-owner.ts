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
  title: 'The owner who comes back',
  claim:
    'A fix for a job system’s races: a job is claimed in one statement, which counts `version` up and returns it; the job of a bot that has fallen silent goes to another. To complete a job, check in a transaction that it is still this bot’s, and write.',
  fault:
    'Nobody asks for the version that the claim returned. Ann was only slow. She reads that the job is hers. Bob takes it over and completes it. Then comes her UPDATE, which names nothing but the id and succeeds, and there are two results.',
  remedy:
    'The version is a fence: each write after the claim names the one it was claimed with, in the WHERE of the statement that writes. After a takeover it matches no row. The name of the bot would not do, since the same bot may claim the same job again.',
  tables: `
    create table job (id int primary key, status text not null, claimed_by text, version int not null, is_silent boolean not null);
    create table result (job int not null, bot text not null)`,
  setup: (db) => db.query(`insert into job values (1, 'claimed', 'ann', 1, true)`),
  invariant: async (db) => {
    const { rows } = await db.query(
      `select claimed_by, (select string_agg(bot, ' and ' order by bot) from result) as bots from job`,
    )
    const { claimed_by, bots } = rows[0]
    assert(bots === claimed_by, `the job is ${claimed_by}’s, and has a result of ${bots}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: {
        ann: (db) => complete(db, 'ann'),
        bob: async (db) => ((await takeOver(db)) ? complete(db, 'bob') : 'nothing to do'),
      },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: {
        ann: (db) => completeWithFence(db, 'ann', 1),
        bob: async (db) => {
          const version = await takeOver(db)
          return version ? completeWithFence(db, 'bob', version) : 'nothing to do'
        },
      },
    },
  ],
}
