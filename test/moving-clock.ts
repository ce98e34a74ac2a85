import type pg from 'pg'

/** A clock that moves also for a function that has begun: one that is replaced is seen when the next begins. */
export async function movingClock(
  pool: pg.Pool,
  schema: string,
  at: Date,
): Promise<{ set(at: Date): Promise<void> }> {
  const set = async (to: Date): Promise<void> => {
    await pool.query(
      `delete from ${schema}.test_time; insert into ${schema}.test_time values ('${to.toISOString()}')`,
    )
  }
  await pool.query(`create table if not exists ${schema}.test_time (at timestamptz not null)`)
  await set(at)
  await pool.query(`create or replace function ${schema}.clock() returns timestamptz
    language plpgsql volatile as $$ begin return (select at from ${schema}.test_time); end $$`)
  return { set }
}
