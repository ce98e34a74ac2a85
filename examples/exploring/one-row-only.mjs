// One statement is not one moment: it sees what was committed when it began. So two that overlap both find no row, and
// both insert one. A unique index makes the second wait for the first.
import { Dibs } from 'dibs'
import { explore } from 'dibs/testing'

const dibs = await Dibs.open()
await dibs.pool.query(`
  drop table if exists lock_row, lock_key;
  create table lock_row (name text not null);
  create table lock_key (name text primary key)`)

const wrong = `insert into lock_row select 'migrations'
  where not exists (select from lock_row where name = 'migrations')`
const right = `insert into lock_key values ('migrations') on conflict do nothing`

for (const [table, insert] of [
  ['lock_row', wrong],
  ['lock_key', right],
]) {
  const report = await explore({
    pool: dibs.pool,
    actors: { alice: (db) => db.query(insert), bob: (db) => db.query(insert) },
    invariant: async (db) => {
      const { rows } = await db.query(`select count(*)::int as n from ${table}`)
      if (rows[0].n !== 1) throw new Error(`${rows[0].n} rows, and there must be one`)
    },
    throws: false,
  })
  console.log(report.race?.printout ?? report.summary)
}

await dibs.pool.query('drop table lock_row, lock_key')
await dibs.close()
