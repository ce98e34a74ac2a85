// Two workers, two jobs. Finding a free job and marking it as taken are two statements with a gap between them, even in a
// transaction. FOR UPDATE SKIP LOCKED closes it.
import { Dibs } from 'dibs'
import { explore } from 'dibs/testing'

const dibs = await Dibs.open()
await dibs.pool.query(`
  drop table if exists job, run;
  create table job (id int primary key, taken_by text);
  create table run (job int not null, worker text not null)`)

async function work(db, worker, lock) {
  const client = await db.connect()
  try {
    await client.query('begin')
    const { rows } = await client.query(
      `select id from job where taken_by is null order by id limit 1 ${lock}`,
    )
    if (rows[0]) {
      await client.query('update job set taken_by = $1 where id = $2', [worker, rows[0].id])
      await client.query('insert into run values ($1, $2)', [rows[0].id, worker])
    }
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

for (const lock of ['', 'for update skip locked']) {
  const report = await explore({
    pool: dibs.pool,
    setup: (db) => db.query('insert into job values (1), (2)'),
    actors: { alice: (db) => work(db, 'alice', lock), bob: (db) => work(db, 'bob', lock) },
    invariant: async (db) => {
      const { rows } = await db.query('select job from run group by job having count(*) > 1')
      if (rows[0]) throw new Error(`job ${rows[0].job} was run twice`)
    },
    throws: false,
  })
  console.log(report.race?.printout ?? report.summary)
}

await dibs.pool.query('drop table job, run')
await dibs.close()
