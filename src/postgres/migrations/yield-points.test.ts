import { afterAll, beforeAll, expect, it } from 'vitest'
import { openDatabase, type TestDatabase } from '../../../test/open-database.js'
import { createTestSchema, type TestSchema } from '../../testing/test-schema.js'
import { Database } from '../database.js'
import { migrations } from './generated/migrations.js'
import { migrate } from './migrate.js'

let usual: TestDatabase
let schema: TestSchema

beforeAll(async () => {
  usual = await openDatabase()
  schema = await createTestSchema(usual.pool)
  await migrate(new Database(usual.pool, { schema: schema.name, prepared: false }), migrations)
})
afterAll(async () => {
  await schema.drop()
  await usual.drop()
})

const functionsWith = async (where: string, text: string): Promise<number> => {
  const { rows } = await usual.pool.query(
    `select count(*)::int as n from pg_proc p join pg_namespace n on n.oid = p.pronamespace
     where n.nspname = $1 and (p.prosrc like $2 or p.proname = $3)`,
    [where, `%${text}%`, text.replace('(', '')],
  )
  return rows[0].n
}

it('are calls in a schema of a test, and comments in every other', async () => {
  expect(await functionsWith(usual.schema, 'dibs_point(')).toBe(0)
  expect(await functionsWith(usual.schema, '-- point: ')).toBeGreaterThan(5)
  expect(await functionsWith(schema.name, 'dibs_point(')).toBeGreaterThan(5)
  expect(await functionsWith(schema.name, '-- point: ')).toBe(0)
})
