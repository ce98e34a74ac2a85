import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { freshName, throughPool, url } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import { createTestSchema, type TestSchema } from '../testing/index.js'

const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
const table = freshName('promised')
let schema: TestSchema
let dibs: Dibs

beforeAll(async () => {
  schema = await createTestSchema(pool)
  dibs = await Dibs.open({ ...throughPool, pool, schema: schema.name, listen: false })
  // Looked at when the transaction commits: after the end of the job was written in it.
  await pool.query(
    `create table ${table} (id int primary key, other int references ${table} deferrable initially deferred)`,
  )
})
afterAll(async () => {
  await dibs.close()
  await pool.query(`drop table ${table}`)
  await schema.drop()
  await pool.end()
})

it('a handler whose transaction cannot be committed has failed, and its lease is not renewed', async () => {
  const jobs = dibs.jobs({ promise: { transactional: true, maxAttempts: 1 } })
  await using worker = await dibs.work([
    jobs.handle({
      promise: async (_, { tx }) => {
        await tx.query(`insert into ${table} values (1, 2)`)
      },
    }),
  ])
  await worker.ready
  const { id } = await jobs.add('promise', 1)
  await expect
    .poll(async () => {
      const { rows } = await pool.query(`select state, worker from ${schema.name}.job where id = $1`, [id])
      return rows[0]
    })
    .toEqual({ state: 'dead', worker: null })
  expect(worker.stats).toMatchObject({ failed: 1, running: 0 })
})
