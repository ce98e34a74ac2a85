import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

class StaleVersion extends Error {}

// #region wrong
const transfer = async (db: Pool, from: string, to: string) => {
  for (let attempt = 1; ; attempt++) {
    try {
      return await inTransaction(db, async (tx) => {
        const { rows } = await tx.query('select balance, version from account where id = $1', [from])
        if (rows[0].balance < 1) throw new Error('insufficient funds')
        const { rowCount } = await tx.query(
          'update account set balance = balance - 1, version = version + 1 where id = $1 and version = $2',
          [from, rows[0].version],
        )
        if (rowCount === 0) throw new StaleVersion()
        await tx.query('update account set balance = balance + 1, version = version + 1 where id = $1', [to])
      })
    } catch (error) {
      if (!(error instanceof StaleVersion) || attempt === 3) throw error
    }
  }
}
// #endregion

// #region right
const transferInOrder = (db: Pool, from: string, to: string) =>
  inTransaction(db, async (tx) => {
    const changes: [id: string, by: number][] = [
      [from, -1],
      [to, 1],
    ]
    for (const [id, by] of changes.sort(([a], [b]) => (a < b ? -1 : 1))) {
      const { rowCount } = await tx.query(
        'update account set balance = balance + $2 where id = $1 and balance + $2 >= 0',
        [id, by],
      )
      if (rowCount === 0) throw new Error(`no account ${id}, or insufficient funds`)
    }
  })
// #endregion

export const race: Race = {
  title: 'A transfer under an optimistic lock',
  line: 'two in opposite directions deadlock',
  claim:
    'The NestJS patterns: transfer money under an optimistic lock. Debit if the version has not changed, else try again, three times at most; then credit.',
  fault:
    'An optimistic lock locks as well: an UPDATE holds its row until COMMIT. Alice holds `a` and wants `b`, bob holds `b` and wants `a`. The server ends alice with 40P01, which the retry does not expect.',
  remedy:
    'Every transfer takes the accounts in the same order, so nobody waits in a circle. The guard stands in the UPDATE, and no version is needed. Repeat a transaction after 40P01 all the same: other code may lock in another order.',
  tables: 'create table account (id text primary key, balance int not null, version int not null default 0)',
  setup: (db) => db.query(`insert into account values ('a', 10), ('b', 10)`),
  invariant: async (db) => {
    const { rows } = await db.query('select sum(balance)::int as total from account')
    assert(rows[0].total === 20, `there are ${rows[0].total} in all`)
  },
  variants: [
    {
      name: 'wrong',
      verdict: 'race',
      actors: { alice: (db) => transfer(db, 'a', 'b'), bob: (db) => transfer(db, 'b', 'a') },
    },
    {
      name: 'right',
      verdict: 'passed',
      actors: { alice: (db) => transferInOrder(db, 'a', 'b'), bob: (db) => transferInOrder(db, 'b', 'a') },
    },
  ],
}
