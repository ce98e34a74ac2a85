import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { inTransaction } from '../in-transaction.js'
import { type Crash, clockTable } from './crash.js'

// #region shared
const claim = async (db: Pool): Promise<number | undefined> => {
  const { rows } = await db.query(
    `update process set claim = claim + 1, leased_until = now + 60 from clock
      where leased_until <= now and step < 2 returning claim`,
  )
  return rows[0]?.claim
}
// #endregion

// #region wrong
const beat = (db: Pool) => db.query('update process set leased_until = now + 60 from clock')

const work = async (db: Pool) => {
  const mine = await claim(db)
  if (mine === undefined) return 'nothing to do'
  let beating: Promise<unknown> | undefined
  await inTransaction(db, async (tx) => {
    await tx.query('update process set step = 1')
    beating = beat(db) // as a timer would: nobody waits for it
    await tx.query('update process set step = 2')
  })
  await beating
  return 'done'
}
// #endregion

// #region right
const workInSteps = async (db: Pool) => {
  const mine = await claim(db)
  if (mine === undefined) return 'nothing to do'
  // A step, a heartbeat, a step.
  for (const change of ['step = 1', 'leased_until = now + 60', 'step = 2']) {
    const { rowCount } = await db.query(`update process set ${change} from clock where claim = $1`, [mine])
    if (rowCount === 0) return 'lost the claim'
  }
  return 'done'
}
// #endregion

export const crash: Crash = {
  title: 'A heartbeat behind its own transaction',
  line: 'the lease ends, and nobody can take over',
  claim:
    'The bus analysis: a process runs in one transaction while a heartbeat renews its lease. If the worker is lost, the lease runs out and another takes over.',
  fault:
    'The transaction holds the row of the process, which the heartbeat and the takeover both want to write. The heartbeat waits until COMMIT, when it is of no use. Takeover waits as well: if the worker hangs in its transaction, or is gone without the server knowing, the lease has run out and nobody can have it. How long that lasts is up to the network, with the usual settings two hours.',
  remedy:
    'No transaction is open while the work is done. Heartbeat and steps are short statements that name the claim. Nobody ever waits for somebody who is gone, and a worker that comes back late changes nothing.',
  tables: `${clockTable};
    create table process (id int primary key, claim int not null, leased_until int not null, step int not null)`,
  mayWait: false,
  setup: (db) => db.query('insert into clock values (0); insert into process values (7, 0, 0, 0)'),
  advance: (db) => db.query('update clock set now = now + 120'),
  progress: async (db) => {
    const { rows } = await db.query('select from process where step = 2')
    return rows.length === 1
  },
  invariant: async (db, { run }) => {
    const { rows } = await db.query('select claim from process')
    const told = run?.status === 'fulfilled' ? run.value : 'nothing'
    assert(rows[0].claim === 1 || told !== 'done', `run was told "done" and claim ${rows[0].claim} has it`)
  },
  variants: [
    { name: 'wrong', failsAt: 'half-open:after-2', run: work },
    { name: 'right', failsAt: null, run: workInSteps },
  ],
}
