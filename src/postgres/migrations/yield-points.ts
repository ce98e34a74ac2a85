import type { Checkout } from '../connections.js'
import { renderSchema } from '../identifier.js'
import { queryText } from '../session.js'
import { TEST_MARK } from './test-mark.js'

/** `-- point: name`, on a line of its own in the body of a function. */
const POINT = /^( *)-- point: ([a-z ]+)$/gm

/**
 * A migration as it is applied to a test's own schema: where a function says `-- point: name`, the explorer may stop it.
 * In any other schema these lines stay comments, and cost nothing.
 */
export async function openPoints({ client }: Checkout, schema: string, text: string): Promise<string> {
  const [found] = await queryText(
    client,
    `select (pg_catalog.obj_description(oid, 'pg_namespace') is not distinct from $2::text)::text as marked
     from pg_catalog.pg_namespace where nspname = $1::text`,
    [schema, TEST_MARK],
  )
  if (found?.marked !== 'true') return text
  // Until someone explores, it does nothing.
  await client.query(
    renderSchema(
      `create or replace function {schema}.dibs_point(text) returns void
       language plpgsql set lock_timeout = 0 as 'begin end'`,
      schema,
    ),
  )
  return text.replace(POINT, "$1perform {schema}.dibs_point('$2');")
}
