// Each statement inside a function sees what is committed by then, so that others can come in between. From outside the
// function is one statement: the explorer takes it for one step and says so. A yield point shows the gap.
import { Dibs } from 'dibs'
import { explore } from 'dibs/testing'

const dibs = await Dibs.open()
await dibs.pool.query(`
  drop table if exists account;
  create table account (name text primary key, balance int not null)`)

const total = (body) => `
  create or replace function total() returns int language plpgsql as $$
  declare a int; b int;
  begin
    ${body}
    return a + b;
  end $$`

const asItIs = total(`
    select balance into a from account where name = 'a';
    select balance into b from account where name = 'b';`)
const withPoint = total(`
    select balance into a from account where name = 'a';
    perform dibs_point('a is read');
    select balance into b from account where name = 'b';`)
const mended = total(`
    perform dibs_point('before');
    select sum(balance) filter (where name = 'a'), sum(balance) filter (where name = 'b') into a, b from account;
    perform dibs_point('after');`)

for (const definition of [asItIs, withPoint, mended]) {
  await dibs.pool.query(definition)
  const report = await explore({
    pool: dibs.pool,
    setup: (db) => db.query(`insert into account values ('a', 10), ('b', 10)`),
    actors: {
      report: async (db) => (await db.query('select total()')).rows[0].total,
      transfer: (db) =>
        db.query(`update account set balance = balance + case name when 'a' then -5 else 5 end`),
    },
    invariant: (_, { report }) => {
      if (report.value !== 20) throw new Error(`the report says ${report.value}, and there are 20`)
    },
    throws: false,
  })
  console.log(report.race?.printout ?? [report.summary, ...report.notes].join('\n  Note: '))
}

await dibs.pool.query('drop function total; drop table account')
await dibs.close()
