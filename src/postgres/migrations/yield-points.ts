import type { Checkout } from '../checkout.js'
import { renderSchema } from '../identifier.js'
import { queryText } from '../pg-query.js'

/** The comment on a schema that `createTestSchema` made. */
export const TEST_MARK = 'made for tests by dibs/testing'

/** `-- point: name`, on a separate line in the body of a function. */
const POINT = /^( *)-- point: ([a-z ]+)$/gm

/**
 * Prepares a migration for the schema of a test. Each `-- point: name` of a function becomes a call at which the
 * explorer can stop it. In all other schemas these lines stay comments and cost nothing.
 */
export async function enableYieldPoints({ client }: Checkout, schema: string, text: string): Promise<string> {
  const [found] = await queryText(
    client,
    `select (pg_catalog.obj_description(oid, 'pg_namespace') is not distinct from $2::text)::text as marked
     from pg_catalog.pg_namespace where nspname = $1::text`,
    [schema, TEST_MARK],
  )
  if (found?.marked !== 'true') return text // guard: migration.points
  // The function does nothing until the explorer replaces it.
  await client.query(
    renderSchema(
      `create or replace function {schema}.dibs_point(text) returns void
       language plpgsql set lock_timeout = 0 as 'begin end'`,
      schema,
    ),
  )
  return text.replace(POINT, "$1perform {schema}.dibs_point('$2');")
}
