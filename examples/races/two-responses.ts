import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
const respond = (db: Pool, response: object) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select state from process where id = 7')
    await tx.query('update process set state = $1 where id = 7', [{ ...rows[0].state, ...response }])
  })
// #endregion

// #region right
const respondUnderLock = (db: Pool, response: object) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select state from process where id = 7 for update')
    await tx.query('update process set state = $1 where id = 7', [{ ...rows[0].state, ...response }])
  })
// #endregion

export const race: Race = {
  title: 'A state, loaded and saved in a transaction',
  line: 'one of two responses is lost',
  claim:
    'The bus analysis: a response loads the state of its process, changes it and saves it. All of that is in a transaction, and so it is atomic.',
  fault:
    'At READ COMMITTED a transaction keeps nobody from writing what it has read. The response about fraud is loaded, saved and committed between the SELECT and the UPDATE of the response about risk, which then saves a whole state without it.',
  remedy:
    'Lock first, then load. `for update` waits while the other response is under way, and returns the row as that one left it.',
  tables: 'create table process (id int primary key, state jsonb not null)',
  setup: (db) => db.query(`insert into process values (7, '{}')`),
  invariant: async (db) => {
    const { rows } = await db.query('select state from process')
    assert(rows[0].state.risk && rows[0].state.fraud, `state is ${JSON.stringify(rows[0].state)}`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { risk: (db) => respond(db, { risk: 'ok' }), fraud: (db) => respond(db, { fraud: 'ok' }) },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: {
        risk: (db) => respondUnderLock(db, { risk: 'ok' }),
        fraud: (db) => respondUnderLock(db, { fraud: 'ok' }),
      },
    },
  ],
}
