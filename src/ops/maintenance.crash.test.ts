import assert from 'node:assert/strict'
import { expect, it } from 'vitest'
import { crashedDatabase } from '../../test/crashed-database.js'
import { isDeep } from '../../test/depth.js'
import { Database } from '../postgres/database.js'
import { Aggregate } from '../tables/aggregate/aggregate.js'
import { checkAggregate } from '../tables/aggregate/aggregate-spec.js'
import { Rows } from '../tables/row-executor.js'
import { crashLoop } from '../testing/crash/crash-loop.js'
import { Maintenance } from './maintenance.js'

const allModes = ['crash', 'error', 'half-open', 'zombie'] as const
const crashed = crashedDatabase(`create table parent (id int primary key, total int not null default 0);
     create table child (id int primary key, parent_id int not null references parent)`)
const { pool } = crashed

it('a round that dies anywhere is finished by the next: what is over is gone, what was marked is counted', async () => {
  const name = crashed.schema.name
  const spec = checkAggregate('totals', {
    ...{ parent: 'parent', child: 'child', foreignKey: 'parent_id' },
    columns: { total: 'count(*)' },
  })
  const report = await crashLoop({
    pool,
    setup: async (db) => {
      await crashed.schema.clock.reset()
      await db.query('insert into parent select generate_series(1, 3)')
      await db.query('insert into child select n, 1 + n % 2 from generate_series(1, 5) n')
      await db.query(
        `insert into ${name}.aggregate_mark (aggregate, parent, id) values ('totals', 'parent'::regclass, '["1"]'), ('totals', 'parent'::regclass, '["2"]'), ('totals', 'parent'::regclass, '["1"]')`,
      )
      await db.query(`insert into ${name}.lock (name, permit, holder, fence, expires_at, acquired_at)
        values ('idle', 0, 'ann', 1, clock_timestamp() - interval '9 days', clock_timestamp() - interval '9 days')`)
    },
    run: async (db) => {
      const own = new Database(db, { schema: name, prepared: true })
      try {
        const aggregates = new Map([['totals', new Aggregate(new Rows(own), spec)]])
        await new Maintenance(own, { aggregates }).run()
      } finally {
        await own.close()
      }
    },
    bound: { recoveries: 6 },
    // Maintenance has many statements, and each mode tests every one of them.
    modes: isDeep ? allModes : ['crash', 'zombie'],
    invariant: async (db) => {
      assert.deepEqual((await db.query('select id, total from parent order by id')).rows, [
        { id: 1, total: 2 },
        { id: 2, total: 3 },
        { id: 3, total: 0 },
      ])
      assert.equal((await db.query(`select from ${name}.aggregate_mark`)).rowCount, 0)
      assert.equal((await db.query(`select from ${name}.lock`)).rowCount, 0)
    },
  })
  if (process.env.SHOW_SCHEDULES) console.log(`${report.points.length} points`)
  expect(report.verdict).toBe('passed')
  expect(report.points.length).toBeGreaterThan(20)
})
