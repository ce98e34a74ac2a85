import type { Pool } from 'pg'
import { SetupError } from '../errors.js'

/** The comment on a schema that tests may bend to their needs. */
export const TEST_MARK = 'made for tests by dibs/testing'

/** Refuses any schema that was not made by `createTestSchema`: time must not be moved under real leases. */
export async function assertTestSchema(pool: Pool, name: string): Promise<void> {
  const { rows } = await pool.query(
    `select 1 from pg_catalog.pg_namespace n
     where n.nspname = $1 and pg_catalog.obj_description(n.oid, 'pg_namespace') = $2`,
    [name, TEST_MARK],
  )
  if (rows.length === 0) {
    throw new SetupError(`Schema "${name}" was not made by createTestSchema, so its clock stays as it is.`)
  }
}
