// A purchase that is paid for twice when the process ends at the wrong moment, and one that is not.
import { randomUUID } from 'node:crypto'
import { Dibs } from 'dibs'
import { crashLoop, recordEffects } from 'dibs/testing'

const dibs = await Dibs.open() // DATABASE_URL, or a PostgreSQL of its own in ./.dibs
await dibs.pool.query(`
  drop table if exists purchase;
  create table purchase (id int primary key, status text not null)`)

/** A bank that charges once for each key, and answers the same again. */
const bank = recordEffects({ dedupes: true })

async function pay(db) {
  const { rows } = await db.query('select status from purchase where id = 7')
  if (rows[0].status === 'paid') return 'paid before'
  await bank.perform('charge', randomUUID())
  await db.query(`update purchase set status = 'paid' where id = 7`)
  return 'paid'
}

async function payWithKey(db) {
  const { rows } = await db.query('select status from purchase where id = 7')
  if (rows[0].status === 'paid') return 'paid before'
  await bank.perform('charge', 'purchase 7')
  await db.query(`update purchase set status = 'paid' where id = 7`)
  return 'paid'
}

for (const run of [pay, payWithKey]) {
  const report = await crashLoop({
    pool: dibs.pool,
    setup: (db) => db.query(`insert into purchase values (7, 'open')`),
    run,
    effects: bank,
    invariant: async (db) => {
      const { rows } = await db.query('select status from purchase')
      if (rows[0].status !== 'paid') throw new Error(`it is ${rows[0].status}`)
      if (bank.count('charge') !== 1) throw new Error(`charged ${bank.count('charge')} times`)
    },
    modes: ['crash'],
    throws: false,
  })
  console.log(report.printout, '\n')
}

await dibs.pool.query('drop table purchase')
await dibs.close()
