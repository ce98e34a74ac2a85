import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from '../in-transaction.js'
import { type Crash, clockTable } from './crash.js'

// #region shared
/** A message that is received is hidden for 30 seconds, and comes back if nobody has deleted it by then. */
const receive = async (db: Pool): Promise<{ command: number; attempt: number } | undefined> => {
  const { rows } = await db.query(
    `update message set attempt = attempt + 1, hidden_until = now + 30 from clock
      where hidden_until <= now returning command, attempt`,
  )
  return rows[0]
}
// #endregion

// #region wrong
const work = async (db: Pool) => {
  const message = await receive(db)
  if (!message) return 'no message'
  await db.query('delete from message where command = $1', [message.command])
  await db.query(`update command set status = 'COMPLETED' where id = $1`, [message.command])
  await db.query('insert into reply values ($1)', [message.command])
  return 'completed'
}
// #endregion

// #region right
const workAndCommit = async (db: Pool) => {
  const message = await receive(db)
  if (!message) return 'no message'
  return inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query('delete from message where command = $1 and attempt = $2', [
      message.command,
      message.attempt,
    ])
    if (rowCount === 0) return 'somebody else has it now'
    await tx.query(`update command set status = 'COMPLETED' where id = $1`, [message.command])
    await tx.query('insert into reply values ($1)', [message.command])
    return 'completed'
  })
}
// #endregion

export const crash: Crash = {
  title: 'Delete, finish and reply, one after the other',
  line: 'the command is in progress for ever, or nobody hears of its end',
  claim:
    'The bus analysis: the worker of the bus deletes the message, finishes the command and sends the reply. If it crashes before, the message comes back: "exactly-once delivery".',
  fault:
    'These are three commits. After the first there is no message any more that could come back, and the command is in progress for ever. After the second, whoever waits for the reply waits for ever.',
  remedy:
    'One transaction. Until it commits the message is there, and comes back. The number of the attempt is the fence: a worker that was away too long deletes nothing, and so finishes nothing.',
  tables: `${clockTable};
    create table command (id int primary key, status text not null);
    create table message (command int primary key, attempt int not null, hidden_until int not null);
    create table reply (command int primary key)`,
  setup: (db) =>
    db.query(
      `insert into clock values (0); insert into command values (7, 'IN_PROGRESS'); insert into message values (7, 0, 0)`,
    ),
  advance: (db) => db.query('update clock set now = now + 60'),
  progress: async (db) => {
    const { rows } = await db.query(`select from command where status = 'COMPLETED'`)
    return rows.length === 1
  },
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as replies from reply')
    assert(rows[0].replies === 1, `completed, with ${rows[0].replies} replies`)
  },
  variants: [
    { name: 'wrong', failsAt: 'crash:after-2', run: work },
    { name: 'right', failsAt: null, run: workAndCommit },
  ],
}
