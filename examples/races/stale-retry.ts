import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const claimRetry = (now: number) => (db: Pool) =>
  db.query(
    `update process set status = 'IN_PROGRESS', claimed_at = $1, next_retry_at = null
      where status = 'WAITING_FOR_RETRY' and next_retry_at <= $1`,
    [now],
  )

const claimPending = (now: number) => async (db: Pool) => {
  await db.query(
    `update process set status = 'PENDING' where status = 'IN_PROGRESS' and claimed_at < $1::int - 60`,
    [now],
  )
  const { rowCount } = await db.query(
    `update process set status = 'IN_PROGRESS', claimed_at = $1 where status = 'PENDING'`,
    [now],
  )
  return rowCount
}
// #endregion

// #region right
const claimRetryFrom = (now: number) => (db: Pool) =>
  db.query(
    `update process set status = 'IN_PROGRESS', claimed_at = $1, claimed_from = status
      where status = 'WAITING_FOR_RETRY' and next_retry_at <= $1`,
    [now],
  )

const claimPendingFrom = (now: number) => async (db: Pool) => {
  await db.query(
    `update process set status = claimed_from where status = 'IN_PROGRESS' and claimed_at < $1::int - 60`,
    [now],
  )
  const { rowCount } = await db.query(
    `update process set status = 'IN_PROGRESS', claimed_at = $1, claimed_from = status where status = 'PENDING'`,
    [now],
  )
  return rowCount
}
// #endregion

export const race: Race = {
  title: 'A claim that erases where it came from',
  line: 'a retry is started as a new process',
  claim:
    'The bus analysis: two pollers, one for new processes and one for due retries, each release the stale claims of their own kind before they claim. A retry is told by its `next_retry_at`.',
  fault:
    'Claiming a retry sets its `next_retry_at` to null; from then on it looks like a new process. Its worker dies. A minute later the poller of new processes releases the claim to PENDING, and starts the process from its beginning.',
  remedy:
    'A claim keeps the status it came from, and a release puts exactly that back. A claim erases nothing that its release needs.',
  tables: `create table process (id int primary key, status text not null,
    claimed_at int, claimed_from text, next_retry_at int)`,
  setup: (db) => db.query(`insert into process values (7, 'WAITING_FOR_RETRY', null, null, 0)`),
  invariant: (_db, { pending }) =>
    assert(pending?.status === 'fulfilled' && pending.value === 0, 'a retry was started as a new process'),
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { retry: claimRetry(0), pending: claimPending(61) },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { retry: claimRetryFrom(0), pending: claimPendingFrom(61) },
    },
  ],
}
