// Two transfers in opposite directions lock two rows in opposite order. Locking in one order, whichever way the money
// goes, has no circle.
import { Dibs } from 'dibs'
import { explore } from 'dibs/testing'

const dibs = await Dibs.open()
await dibs.pool.query(`
  drop table if exists account;
  create table account (name text primary key, balance int not null)`)

async function transfer(db, from, to, inOrder) {
  const changes = [
    [from, -1],
    [to, 1],
  ]
  if (inOrder) changes.sort()
  const client = await db.connect()
  try {
    await client.query('begin')
    for (const [name, by] of changes)
      await client.query('update account set balance = balance + $2 where name = $1', [name, by])
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

for (const inOrder of [false, true]) {
  const report = await explore({
    pool: dibs.pool,
    setup: (db) => db.query(`insert into account values ('a', 10), ('b', 10)`),
    actors: { alice: (db) => transfer(db, 'a', 'b', inOrder), bob: (db) => transfer(db, 'b', 'a', inOrder) },
    throws: false,
  })
  console.log(report.race?.printout ?? report.summary)
}

await dibs.pool.query('drop table account')
await dibs.close()
