import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import type { Race } from './race.js'

// #region shared
const debit = async (db: Pool) => {
  const { rows } = await db.query('select balance, version from account')
  const { rowCount } = await db.query(
    'update account set balance = $1, version = version + 1 where version = $2',
    [rows[0].balance - 3, rows[0].version],
  )
  return rowCount === 1 ? 'debited' : 'changed by another'
}
// #endregion

// #region wrong
const credit = (db: Pool) => db.query('update account set balance = balance + 5')
// #endregion

// #region right
const countedCredit = (db: Pool) =>
  db.query('update account set balance = balance + 5, version = version + 1')
// #endregion

export const race: Race = {
  title: 'A credit that does not count',
  line: 'the version is the same, and five are gone',
  claim:
    'Common practice: the debit is checked against a version, since it could overdraw. The credit adds in place, which loses nothing, and leaves the version alone.',
  fault:
    "Each is right by itself. But bob's credit comes between alice's SELECT and her UPDATE, and the version, which he has not touched, tells her that nothing has changed. She writes a balance without it.",
  remedy:
    'Whoever writes the row counts it, whatever they write. Then alice is refused, and reads again. (A debit in one statement, `set balance = balance - 3 where balance >= 3`, needs no version, and no such rule.)',
  tables: 'create table account (balance int not null, version int not null)',
  setup: (db) => db.query('insert into account values (10, 0)'),
  invariant: async (db, outcomes) => {
    const { rows } = await db.query('select balance from account')
    const expected = answersOf(outcomes).alice === 'debited' ? 12 : 15
    assert(rows[0].balance === expected, `the balance is ${rows[0].balance}, not ${expected}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: debit, bob: credit } },
    { name: 'right', verdict: 'passed', actors: { alice: debit, bob: countedCredit } },
  ],
}
