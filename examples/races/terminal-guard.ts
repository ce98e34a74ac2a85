import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import type { Race } from './race.js'

// #region wrong
const moveProcess = `
  create function move_process(process_id int, new_status text) returns boolean language plpgsql as $$
  declare
    old_status text;
  begin
    select status into old_status from process where id = process_id;
    if old_status in ('COMPLETED', 'FAILED', 'CANCELED') then
      return false;
    end if;
    perform dibs_point('the status is read');
    update process set status = new_status where id = process_id;
    return true;
  end $$`

const move = (status: string) => async (db: Pool) => {
  const { rows } = await db.query('select move_process(7, $1) as moved', [status])
  return rows[0].moved
}
// #endregion

// #region right
const moveIfOpen = (status: string) => async (db: Pool) => {
  const { rowCount } = await db.query(
    `update process set status = $1 where id = 7 and status not in ('COMPLETED', 'FAILED', 'CANCELED')`,
    [status],
  )
  return rowCount === 1
}
// #endregion

export const race: Race = {
  title: 'A status, checked in a stored procedure',
  line: 'a completed process is parked',
  claim:
    'The bus analysis: one stored procedure makes every change of status. It first checks that the process has not ended, so that none goes back, and then changes the status in one atomic UPDATE.',
  fault:
    'The UPDATE is atomic, but the guard is another statement, and a function does not join the two: at READ COMMITTED each statement in it sees what has been committed meanwhile. The worker completes the process between the SELECT and the UPDATE of the operator, who parks it. (`dibs_point` marks where the explorer may stop inside the function.)',
  remedy:
    'The guard stands in the WHERE of the UPDATE, in a function or not. PostgreSQL checks it on the newest version of the row, also after a wait.',
  tables: 'create table process (id int primary key, status text not null)',
  functions: moveProcess,
  setup: (db) => db.query(`insert into process values (7, 'IN_PROGRESS')`),
  invariant: async (db, { worker }) => {
    const isCompleted = worker?.status === 'fulfilled' && worker.value
    const { rows } = await db.query('select status from process')
    assert(!isCompleted || rows[0].status === 'COMPLETED', `it was COMPLETED, and now is ${rows[0].status}`)
  },
  variants: [
    { name: 'wrong', verdict: 'race', actors: { operator: move('PARKED'), worker: move('COMPLETED') } },
    {
      name: 'right',
      verdict: 'passed',
      actors: { operator: moveIfOpen('PARKED'), worker: moveIfOpen('COMPLETED') },
    },
  ],
}
