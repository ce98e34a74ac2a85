// Write skew: each doctor sees the other on call and goes home. REPEATABLE READ lets both, for they write different rows.
// SERIALIZABLE refuses one of them, and dibs.transaction runs that one again.
import { Dibs } from 'dibs'
import { explore } from 'dibs/testing'

const dibs = await Dibs.open()
await dibs.pool.query(`
  drop table if exists doctor;
  create table doctor (name text primary key, on_call boolean not null)`)

async function goHome(tx, name) {
  const { rows } = await tx.query('select count(*)::int as n from doctor where on_call')
  if (rows[0].n > 1) await tx.query('update doctor set on_call = false where name = $1', [name])
}

for (const isolation of ['repeatable read', 'serializable']) {
  // The code under test has its pool from elsewhere: dibs.transaction takes connections of dibs.pool.
  const leave = (name) => dibs.transaction((tx) => goHome(tx, name), { isolation })
  const report = await explore({
    pool: dibs.pool,
    isolation,
    setup: (db) => db.query(`insert into doctor values ('ann', true), ('ben', true)`),
    actors: { ann: () => leave('ann'), ben: () => leave('ben') },
    invariant: async (db) => {
      const { rows } = await db.query('select count(*)::int as n from doctor where on_call')
      if (rows[0].n < 1) throw new Error('nobody is on call')
    },
    throws: false,
  })
  console.log(report.race?.printout ?? report.summary)
}

await dibs.pool.query('drop table doctor')
await dibs.close()
