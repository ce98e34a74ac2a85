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
  title: 'A claim by half of the key',
  line: 'a worker claims processes of another domain',
  claim:
    'The bus analysis: `for update skip locked` selects processes of one domain, and an UPDATE joined to them claims them. So no two workers get the same one.',
  fault:
    'The key is `(domain, id)`, and the join names only `id`. One row was selected and locked; every row with that id is updated. The worker of `orders` gets the process of `billing` too, which its SELECT has neither locked nor looked at, and the worker of `billing` finds nothing to do.',
  remedy: 'The UPDATE names the whole key, so it writes the rows that were locked and no others.',
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
