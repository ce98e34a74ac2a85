import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const work = (now: number) => async (db: Pool) => {
  const { rowCount } = await db.query(
    `update command set status = 'IN_PROGRESS', attempt = attempt + 1, hidden_until = $1::int + 30
      where id = (select id from command where hidden_until <= $1 and status not in ('COMPLETED', 'CANCELED')
                   for update skip locked)`,
    [now],
  )
  if (rowCount === 0) return 'nothing to do'
  return inTransaction(db, async (tx) => {
    await tx.query('insert into charge (command) values (1)')
    await tx.query(`update command set status = 'COMPLETED' where id = 1`)
    return 'charged'
  })
}
// #endregion

// #region right
const workWithFence = (now: number) => async (db: Pool) => {
  const { rows } = await db.query(
    `update command set status = 'IN_PROGRESS', attempt = attempt + 1, hidden_until = $1::int + 30
      where id = (select id from command where hidden_until <= $1 and status not in ('COMPLETED', 'CANCELED')
                   for update skip locked)
     returning attempt`,
    [now],
  )
  if (rows.length === 0) return 'nothing to do'
  return inTransaction(db, async (tx) => {
    const { rowCount } = await tx.query(
      `update command set status = 'COMPLETED' where id = 1 and status = 'IN_PROGRESS' and attempt = $1`,
      [rows[0].attempt],
    )
    if (rowCount === 0) return 'too late'
    await tx.query('insert into charge (command) values (1)')
    return 'charged'
  })
}
// #endregion

export const race: Race = {
  title: 'A guard against finished commands',
  line: 'a command is received while it runs, and charged twice',
  claim:
    "The bus analysis: whoever reads a message hides it for 30 seconds, and receives its command only if that is `not in ('COMPLETED', 'CANCELED')`. So nothing is processed twice. (Message and command are one row here.)",
  fault:
    'The guard stops a second run after the first has ended. Duplicates begin earlier. Alice receives the command at second 0, and her handler is slow. At second 31 bob receives it too, since it is IN_PROGRESS, and charges too.',
  remedy:
    'The number of the attempt is a fence. Effect and outcome are one transaction, and it begins with the UPDATE that names the attempt: both may work, and one counts. An effect outside the database does not roll back; send the id of the command along as its key, so that the other side refuses the second.',
  tables: `
    create table command (id int primary key, status text not null, attempt int not null, hidden_until int not null);
    create table charge (command int not null)`,
  setup: (db) => db.query(`insert into command values (1, 'PENDING', 0, 0)`),
  invariant: async (db, { bob }) => {
    const { rows } = await db.query('select count(*)::int as n from charge')
    assert(rows[0].n === 1, `charged ${rows[0].n} times`)
    const isRefused = bob?.status === 'fulfilled' && bob.value === 'too late'
    assert(!isRefused, 'bob has received it last, and was refused')
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: work(0), bob: work(31) } },
    { name: 'right', verdict: 'passed', actors: { alice: workWithFence(0), bob: workWithFence(31) } },
  ],
}
