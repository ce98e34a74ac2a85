import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { dumpSchema } from '../../../test/dump-schema.js'
import { openDatabase, type TestDatabase } from '../../../test/open-database.js'

let database: TestDatabase

beforeAll(async () => {
  database = await openDatabase()
})

afterAll(() => database.drop())

it('is the one in sql/schema.txt; run `npm test -- -u` to take over a change', async () => {
  const dump = await dumpSchema(database.pool, database.schema)
  expect(dump).not.toContain(database.schema)
  await expect(dump).toMatchFileSnapshot(join(import.meta.dirname, '../../../sql/schema.txt'))
})
