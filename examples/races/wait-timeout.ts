import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const respond = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select status, state from process where id = 7')
    if (rows[0].status !== 'WAITING') return 'too late'
    const state = { ...rows[0].state, approved: true }
    await tx.query(`update process set status = 'COMPLETED', state = $1 where id = 7`, [state])
    return 'COMPLETED'
  })

const timeOut = (db: Pool) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select status, state from process where id = 7')
    if (rows[0].status !== 'WAITING') return 'too late'
    const state = { ...rows[0].state, error: 'WAIT_TIMEOUT' }
    await tx.query(`update process set status = 'FAILED', state = $1 where id = 7`, [state])
    return 'FAILED'
  })
// #endregion

// #region under an advisory lock
const respondUnderLock = (db: Pool) =>
  inTransaction(db, async (tx) => {
    await tx.query('select pg_advisory_xact_lock(7)')
    const { rows } = await tx.query('select status, state from process where id = 7')
    if (rows[0].status !== 'WAITING') return 'too late'
    const state = { ...rows[0].state, approved: true }
    await tx.query(`update process set status = 'COMPLETED', state = $1 where id = 7`, [state])
    return 'COMPLETED'
  })
// #endregion

// #region right
const respondIfWaiting = async (db: Pool) => {
  const { rowCount } = await db.query(
    `update process set status = 'COMPLETED', state = state || '{"approved": true}'
      where id = 7 and status = 'WAITING' and wait = 3`,
  )
  return rowCount === 1 ? 'COMPLETED' : 'too late'
}

const timeOutIfWaiting = async (db: Pool) => {
  const { rowCount } = await db.query(
    `update process set status = 'FAILED', state = state || '{"error": "WAIT_TIMEOUT"}'
      where id = 7 and status = 'WAITING' and wait = 3`,
  )
  return rowCount === 1 ? 'FAILED' : 'too late'
}
// #endregion

export const race: Race = {
  title: 'A timeout, checked in a transaction',
  line: 'a response is confirmed, and then erased',
  claim:
    'The bus analysis: a wait may time out just as its response arrives. The risk is called low, since both check the status, in transactions, which are said to run one after the other.',
  fault:
    'Transactions at READ COMMITTED do not run one after the other. The timeout reads WAITING. The response reads it too, completes the process and commits. Then the timeout writes what it has made of the old row. The approval is gone, and its sender was told that it counts.',
  remedy:
    'The transition is one statement, and its WHERE says from where: this status, this wait by its number. Whoever comes second finds no such row, is told, and has written nothing.',
  tables:
    'create table process (id int primary key, status text not null, wait int not null, state jsonb not null)',
  setup: (db) => db.query(`insert into process values (7, 'WAITING', 3, '{}')`),
  invariant: async (db, outcomes) => {
    const told = Object.values(outcomes)
      .map((outcome) => outcome.status === 'fulfilled' && outcome.value)
      .filter((answer) => answer !== 'too late')
    const { rows } = await db.query('select status, state::text from process')
    const left = `${rows[0].status} ${rows[0].state}`
    assert(
      told.length === 1 && told[0] === rows[0].status,
      `told: ${told.join(' and ')}; what is left: ${left}`,
    )
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { timeout: timeOut, response: respond } },
    {
      name: 'under an advisory lock',
      title: 'Still wrong: under an advisory lock',
      text: 'The improvement that the analysis proposes is an advisory lock around responses. The timeout does not take it, so it excludes nobody: two who must exclude each other have to take the same lock.',
      verdict: 'race',
      actors: { timeout: timeOut, response: respondUnderLock },
    },
    { name: 'right', verdict: 'passed', actors: { timeout: timeOutIfWaiting, response: respondIfWaiting } },
  ],
}
