import type { Pool } from 'pg'
import { SetupError } from '../errors.js'
import { TEST_MARK } from '../postgres/migrations/yield-points.js'

/** Refuses any schema that was not made by `createTestSchema`: time must not be moved under real leases. */
export async function assertTestSchema(pool: Pool, name: string): Promise<void> {
  const { rows } = await pool.query<{ marked: boolean; migrated: boolean }>(
    `select pg_catalog.obj_description(n.oid, 'pg_namespace') is not distinct from $2 as marked,
            exists (select 1 from pg_catalog.pg_proc p where p.pronamespace = n.oid and p.proname = 'clock') as migrated
     from pg_catalog.pg_namespace n where n.nspname = $1`,
    [name, TEST_MARK],
  )
  if (!rows[0]?.marked) {
    throw new SetupError(`Schema "${name}" was not made by createTestSchema, so its clock stays as it is.`)
  }
  if (!rows[0].migrated) throw new SetupError(`Schema "${name}" has no clock yet: open Dibs on it first.`)
}
