import { randomBytes } from 'node:crypto'
import type { Pool } from 'pg'
import { checkSchemaName, quoteIdentifier, renderSchema } from '../postgres/identifier.js'
import { TEST_MARK } from '../postgres/migrations/yield-points.js'
import { TestClock } from './test-clock.js'
import { TestWaits } from './test-waits.js'

export interface TestSchema extends AsyncDisposable {
  readonly name: string
  readonly clock: TestClock
  readonly waits: TestWaits
  drop(): Promise<void>
}

/**
 * Makes an empty schema for one test file, to be given to `Dibs.open`, and removed with `drop` or `await using`.
 *
 * @example
 * await using schema = await createTestSchema(pool)
 * await using dibs = await Dibs.open({ pool, schema: schema.name })
 * await schema.clock.advance(60_000)
 */
export async function createTestSchema(
  pool: Pool,
  name = `dibs_test_${randomBytes(6).toString('hex')}`,
): Promise<TestSchema> {
  checkSchemaName(name)
  await pool.query(renderSchema(`create schema {schema}; comment on schema {schema} is '${TEST_MARK}'`, name))
  let dropping: Promise<unknown> | undefined
  const drop = async (): Promise<void> => {
    dropping ??= pool.query(`drop schema if exists ${quoteIdentifier(name)} cascade`)
    await dropping
  }
  return {
    name,
    clock: new TestClock(pool, name),
    waits: new TestWaits(pool, name),
    drop,
    [Symbol.asyncDispose]: drop,
  }
}
