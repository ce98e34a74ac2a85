import type { Pool } from 'pg'
import { InvalidInputError } from '../errors.js'
import { renderSchema } from '../postgres/identifier.js'
import { assertTestSchema } from './test-mark.js'

/** Moves the time that a test's own schema goes by, so that a lease can run out without waiting for it. */
export class TestClock {
  readonly #pool: Pool
  readonly #schema: string
  #offsetMs = 0

  constructor(pool: Pool, schema: string) {
    this.#pool = pool
    this.#schema = schema
  }

  /** Sets the clock forward, or back with a negative number; it goes on running. */
  async advance(ms: number): Promise<void> {
    if (!Number.isSafeInteger(ms)) throw new InvalidInputError('ms', `must be a whole number, not ${ms}`)
    this.#offsetMs += ms
    await this.#replace(`pg_catalog.clock_timestamp() + interval '${this.#offsetMs} milliseconds'`)
  }

  /** Stops the clock at one moment. */
  async freeze(at: Date): Promise<void> {
    await this.#replace(`timestamptz '${at.toISOString()}'`)
  }

  /** Back to the real time. */
  async reset(): Promise<void> {
    this.#offsetMs = 0
    await this.#replace('pg_catalog.clock_timestamp()')
  }

  async #replace(expression: string): Promise<void> {
    await assertTestSchema(this.#pool, this.#schema)
    await this.#pool.query(
      renderSchema(
        `create or replace function {schema}.clock() returns timestamptz
         language sql volatile parallel safe as $body$ select ${expression} $body$`,
        this.#schema,
      ),
    )
  }
}
