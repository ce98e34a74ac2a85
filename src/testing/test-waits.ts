import type { Pool } from 'pg'
import { renderSchema } from '../postgres/identifier.js'
import { assertTestSchema } from './assert-test-schema.js'

/**
 * Decides how bounded waits for a lock end in a test's own schema. A real timeout ends when it likes; an explored schedule
 * needs it to be all or nothing.
 */
export class TestWaits {
  readonly #pool: Pool
  readonly #schema: string

  constructor(pool: Pool, schema: string) {
    this.#pool = pool
    this.#schema = schema
  }

  /** From now on a waiting call never times out. */
  async never(): Promise<void> {
    await this.#replace("'0'")
  }

  /** From now on a call that has to wait times out at once. */
  async atOnce(): Promise<void> {
    await this.#replace("'1'")
  }

  /** Back to the time that each call gives. */
  async reset(): Promise<void> {
    await this.#replace('ms::text')
  }

  async #replace(expression: string): Promise<void> {
    await assertTestSchema(this.#pool, this.#schema)
    await this.#pool.query(
      renderSchema(
        `create or replace function {schema}.limit_lock_wait(ms integer) returns text
         language sql volatile as $body$ select pg_catalog.set_config('lock_timeout', ${expression}, true) $body$`,
        this.#schema,
      ),
    )
  }
}
