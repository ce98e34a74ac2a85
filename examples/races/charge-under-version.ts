import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region shared
/** Stands for a bank. It is no part of a transaction, and nothing takes it back. */
const charge = (db: Pool) => db.query('insert into charge values (7)')
// #endregion

// #region wrong
const pay = async (db: Pool) => {
  const { rows } = await db.query('select status, version from invoice where id = 7')
  if (rows[0].status !== 'open') return 'paid before'
  await charge(db)
  const { rowCount } = await db.query(
    `update invoice set status = 'paid', version = version + 1 where id = 7 and version = $1`,
    [rows[0].version],
  )
  return rowCount === 1 ? 'paid' : 'changed by another'
}
// #endregion

// #region right
const claimAndPay = async (db: Pool) => {
  const { rowCount } = await db.query(
    `update invoice set status = 'paying', version = version + 1 where id = 7 and status = 'open'`,
  )
  if (rowCount === 0) return 'paid before, or being paid'
  await charge(db)
  await db.query(`update invoice set status = 'paid', version = version + 1 where id = 7`)
  return 'paid'
}
// #endregion

export const race: Race = {
  title: 'A charge under an optimistic lock',
  line: 'the second write is refused, the second charge is not',
  claim:
    'Common practice: read the invoice, charge the card, mark it as paid if its version has not changed. Of two clicks, one is refused.',
  fault:
    'The version is compared at the end, and the card is charged before. When bob reads, alice has charged, and the invoice is still open. One of the two writes is refused, which takes no charge back.',
  remedy:
    'Claim first, and charge after: of two who go from `open` to `paying`, one does. That holds against others, not against a crash: a process that dies in between leaves `paying` for ever. A claim that may be taken over needs a lease, and a bank that knows the key of a repetition.',
  tables: `
    create table invoice (id int primary key, status text not null, version int not null);
    create table charge (invoice int not null)`,
  setup: (db) => db.query(`insert into invoice values (7, 'open', 0)`),
  invariant: async (db) => {
    const { rows } = await db.query('select count(*)::int as n from charge')
    assert(rows[0].n === 1, `charged ${rows[0].n} times`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { alice: pay, bob: pay } },
    { name: 'right', verdict: 'passed', actors: { alice: claimAndPay, bob: claimAndPay } },
  ],
}
