// Two buyers, one lamp. To look first and buy then sells it twice; one statement that does both sells it once.
import { Dibs } from 'dibs'
import { explore } from 'dibs/testing'

const dibs = await Dibs.open() // DATABASE_URL, or a PostgreSQL of its own in ./.dibs
await dibs.pool.query(`
  drop table if exists stock;
  create table stock (sku text primary key, amount int not null)`)

async function buy(db) {
  const { rows } = await db.query(`select amount from stock where sku = 'lamp'`)
  if (rows[0].amount < 1) return 'sold out'
  await db.query(`update stock set amount = amount - 1 where sku = 'lamp'`)
  return 'bought'
}

async function buyAtOnce(db) {
  const { rowCount } = await db.query(
    `update stock set amount = amount - 1 where sku = 'lamp' and amount > 0`,
  )
  return rowCount === 0 ? 'sold out' : 'bought'
}

for (const actor of [buy, buyAtOnce]) {
  const report = await explore({
    pool: dibs.pool,
    setup: (db) => db.query(`insert into stock values ('lamp', 1)`),
    actors: { alice: actor, bob: actor },
    invariant: async (db) => {
      const { rows } = await db.query('select amount from stock')
      if (rows[0].amount < 0) throw new Error(`amount is ${rows[0].amount}`)
    },
    throws: false,
  })
  console.log(report.race?.printout ?? report.summary)
}

await dibs.pool.query('drop table stock')
await dibs.close()
