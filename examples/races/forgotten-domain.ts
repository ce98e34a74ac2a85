import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const claim = (domain: string) => async (db: Pool) => {
  const { rows } = await db.query(
    `with due as (
       select id from process where domain = $1 and status = 'PENDING' order by id limit 10 for update skip locked)
     update process p set status = 'IN_PROGRESS' from due where p.id = due.id
     returning p.domain, p.id`,
    [domain],
  )
  return rows.map((row) => `${row.domain} ${row.id}`).join(', ')
}
// #endregion

// #region right
const claimByKey = (domain: string) => async (db: Pool) => {
  const { rows } = await db.query(
    `with due as (
       select domain, id from process where domain = $1 and status = 'PENDING' order by id limit 10 for update skip locked)
     update process p set status = 'IN_PROGRESS' from due where p.domain = due.domain and p.id = due.id
     returning p.domain, p.id`,
    [domain],
  )
  return rows.map((row) => `${row.domain} ${row.id}`).join(', ')
}
// #endregion

export const race: Race = {
  title: 'The claim that forgets half of the key',
  claim:
    'An analysis of a command bus: `for update skip locked` chooses the rows of one domain, an UPDATE joined to them claims them, and so each worker gets “a distinct set of processes”.',
  fault:
    'The key is `(domain, id)`, and the join names only `id`. What was chosen and locked is one row; what is updated is every row with that id. The claim of `orders` takes the process of `billing` along, which nobody had locked and whose status nobody looked at, and the worker of `billing` finds nothing to do. It takes no bad timing.',
  remedy:
    'The UPDATE names the whole key of the rows that were locked. Locks protect rows, so the statement that writes must write exactly those.',
  tables: 'create table process (domain text, id int, status text not null, primary key (domain, id))',
  setup: (db) => db.query(`insert into process values ('orders', 1, 'PENDING'), ('billing', 1, 'PENDING')`),
  invariant: (_db, outcomes) => {
    for (const [domain, outcome] of Object.entries(outcomes)) {
      const claimed = outcome.status === 'fulfilled' && outcome.value
      assert(claimed === `${domain} 1`, `the worker of ${domain} got: ${claimed || 'nothing'}`)
    }
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      isSerial: true,
      actors: { orders: claim('orders'), billing: claim('billing') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { orders: claimByKey('orders'), billing: claimByKey('billing') },
    },
  ],
}
