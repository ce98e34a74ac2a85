import { expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'

const fixture = openJobs()
const KEEP_DAYS = 55
const LOCK = 4711

/**
 * Replaces the table of lanes by a view. A statement that joins it is planned only while nobody holds the advisory lock, once
 * the planner has read the list of partitions of the history.
 */
const pausePlanning = `
  create function {schema}.pause(id integer) returns integer stable language plpgsql as $$ begin
    if exists (select from pg_locks l join pg_inherits i on i.inhrelid = l.relation
      where l.pid = pg_backend_pid() and i.inhparent = '{schema}.job_history'::regclass) then
      perform pg_advisory_lock_shared(${LOCK});
      perform pg_advisory_unlock_shared(${LOCK});
    end if;
    return id;
  end $$;
  alter table {schema}.lane rename to lane_table;
  create view {schema}.lane as select * from {schema}.lane_table where id > {schema}.pause(0)`

it('finds a job that ends while the statement is planned, and whose history needs a new partition', async () => {
  await fixture.query(`select {schema}.job_history_add_partition(current_date + 3)`)
  await fixture.query(`select {schema}.add_job('note', keep_days => ${KEEP_DAYS})`)
  const [lane] = await fixture.query('select id from {schema}.lane')
  await fixture.query(`select {schema}.job_claim('{ann}', '{1}', '{${lane?.id}}', '{0}', '{0}', '{1}')`)
  const [job] = await fixture.query('select id::text, fence::text from {schema}.job')
  await fixture.query(pausePlanning)
  const holder = await fixture.pool.connect()
  try {
    // In a transaction: behind PgBouncer, the read could otherwise be given the connection that holds the lock.
    await holder.query(`begin; select pg_advisory_xact_lock(${LOCK})`)
    const read = fixture.dibs.jobs({ note: {} }).get(`${job?.id}`)
    const waiting = `select from pg_locks where locktype = 'advisory' and objid = ${LOCK} and not granted`
    await until(async () => (await fixture.query(waiting)).length > 0, 'the statement to be planned')
    await fixture.query(
      `select {schema}.job_complete('{${job?.id}}', '{${job?.fence}}', null, '{${KEEP_DAYS}}')`,
    )
    await holder.query('commit')
    expect(await read).toMatchObject({ state: 'succeeded' })
  } finally {
    await holder.query('rollback')
    holder.release()
  }
})
