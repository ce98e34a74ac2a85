import pg from 'pg'
import { afterAll, beforeAll, vi } from 'vitest'
import { Dibs } from '../src/dibs.js'
import { createTestSchema, type TestSchema } from '../src/testing/test-schema.js'
import { exploredSchema } from './explored-schema.js'

interface CrashedDatabase {
  readonly pool: pg.Pool
  /** Ours, with a clock that can be moved. There once the tests begin. */
  readonly schema: TestSchema
}

/** Makes a database for a crash loop over a part of Dibs, with these tables and the schema of Dibs. */
export function crashedDatabase(tables: string): CrashedDatabase {
  vi.setConfig({ testTimeout: process.env.SOAK_SECONDS ? 3_600_000 : 180_000 })
  const pool = new pg.Pool({ connectionString: exploredSchema(tables).url })
  pool.on('error', () => {})
  let schema: TestSchema | undefined
  beforeAll(async () => {
    schema = await createTestSchema(pool)
    await (await Dibs.open({ pool, schema: schema.name, listen: false, maintain: false })).close()
  })
  afterAll(() => pool.end())
  return {
    pool,
    get schema() {
      if (!schema) throw new Error('The schema is made before the first test')
      return schema
    },
  }
}
