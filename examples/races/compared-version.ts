import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { answersOf } from './answers-of.js'
import { inTransaction } from './in-transaction.js'
import type { Race } from './race.js'

// #region wrong
// Both have the form open, with version 1 in it.
const save = (db: Pool, note: string) =>
  inTransaction(db, async (tx) => {
    const { rows } = await tx.query('select version from form where id = 7')
    if (rows[0].version !== 1) return 'changed by another'
    await tx.query('update form set note = $1, version = version + 1 where id = 7', [note])
    return 'saved'
  })
// #endregion

// #region right
const saveIfUnchanged = async (db: Pool, note: string) => {
  const { rowCount } = await db.query(
    'update form set note = $1, version = version + 1 where id = 7 and version = 1',
    [note],
  )
  return rowCount === 1 ? 'saved' : 'changed by another'
}
// #endregion

const both = (fn: (db: Pool, note: string) => Promise<string>) => ({
  alice: (db: Pool) => fn(db, 'by alice'),
  bob: (db: Pool) => fn(db, 'by bob'),
})

export const race: Race = {
  title: 'A version, compared before the write',
  line: 'both are told "saved", and one note is gone',
  claim:
    'Common practice, and what some object mappers do under the name of an optimistic lock: read the version, compare it with the one in the form, and write if they are the same.',
  fault:
    "Bob saves between alice's SELECT and her UPDATE. Her comparison was right when she made it. The UPDATE does not make it again, and writes over his note.",
  remedy:
    'The version stands in the `where` of the UPDATE. The second who saves waits for the first; then the row has version 2, and no row is written.',
  tables: 'create table form (id int primary key, note text not null, version int not null)',
  setup: (db) => db.query(`insert into form values (7, '', 1)`),
  invariant: (_, outcomes) => {
    const saved = Object.values(answersOf(outcomes)).filter((answer) => answer === 'saved')
    assert(saved.length === 1, `${saved.length} were told that version 1 is theirs to change`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: both(save) },
    { name: 'right', verdict: 'passed', actors: both(saveIfUnchanged) },
  ],
}
