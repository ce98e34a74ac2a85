import assert from 'node:assert/strict'
import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { Dibs } from '../../dibs.js'
import { crashLoop, createTestSchema } from '../../testing/index.js'

const { url } = exploredSchema('create table payment (id int primary key, by text not null)')
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
const schema = 'crashed_kv'
let dibs: Dibs

beforeAll(async () => {
  await createTestSchema(pool, schema)
  dibs = await Dibs.open({ pool, schema, listen: false })
})
// No `dibs.close()`: it would wait for the calls of those that were killed, which never end.
afterAll(() => pool.end())

/** Claims and writes its own row in one transaction: whoever loses is given what the winner has done. */
const pay = (by: string): Promise<string> =>
  dibs.transaction(async (tx) => {
    const claim = await dibs.kv.setIfAbsent('payment:7', { by }, { tx, ttlMs: 60_000 })
    if (!claim.ok) return claim.current.value.by
    await tx.query('insert into payment values (7, $1)', [by])
    return by
  })

it('a claim and a row of the caller stand or fall together, whatever happens in between', async () => {
  const report = await crashLoop({
    pool,
    run: (_, { number }) => pay(`instance ${number}`),
    invariant: async (db, { run, recoveries }) => {
      const { rows } = await db.query('select by from payment')
      assert.equal(rows.length, 1)
      const { rows: keys } = await db.query(`select value ->> 'by' as by from ${schema}.kv`)
      assert.deepEqual(keys, rows)
      for (const told of [run, ...recoveries])
        if (told?.status === 'fulfilled') assert.equal(told.value, rows[0].by)
    },
  })
  expect(report.modes).toEqual(['crash', 'error', 'half-open', 'zombie'])
  expect(report.statements).toBe(3)
})

it('a write from a version is done once, also by whoever did not hear of it', async () => {
  await crashLoop({
    pool,
    setup: () => dibs.kv.set('counter', { n: 0 }),
    // Reads, and writes from what it has read; if it is there already, it was us before.
    run: async () => {
      const before = await dibs.kv.get<{ n: number }>('counter')
      if (before?.value.n === 0) await dibs.kv.compareAndSet('counter', before.version, { n: 1 })
    },
    invariant: async (db) => {
      const { rows } = await db.query(`select value from ${schema}.kv`)
      assert.deepEqual(rows, [{ value: { n: 1 } }])
    },
  })
})
