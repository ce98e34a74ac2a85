import type { Pool } from 'pg'
import { InvalidInputError } from '../errors.js'
import { renderSchema } from '../postgres/identifier.js'
import { assertTestSchema } from './assert-test-schema.js'

/** Moves the time that a test's own schema goes by, so that a lease can run out without waiting for it. */
export class TestClock {
  readonly #pool: Pool
  readonly #schema: string
  #offsetMs = 0
  #frozenAt: number | undefined
  /** One change after the other. */
  #last: Promise<unknown> = Promise.resolve()

  constructor(pool: Pool, schema: string) {
    this.#pool = pool
    this.#schema = schema
  }

  /** Sets the clock forward, or back with a negative number. A frozen clock stays frozen, at the new time. */
  async advance(ms: number): Promise<void> {
    if (!Number.isSafeInteger(ms)) throw new InvalidInputError('ms', `must be a whole number, not ${ms}`)
    await this.#inTurn(async () => {
      if (this.#frozenAt !== undefined) return this.#freezeAt(this.#frozenAt + ms)
      const offsetMs = this.#offsetMs + ms
      await this.#replace(`pg_catalog.clock_timestamp() + ${offsetMs} * interval '1 millisecond'`)
      this.#offsetMs = offsetMs
    })
  }

  /** Stops the clock at one moment. */
  async freeze(at: Date): Promise<void> {
    await this.#inTurn(() => this.#freezeAt(at.getTime()))
  }

  /** Back to the real time. */
  async reset(): Promise<void> {
    await this.#inTurn(async () => {
      await this.#replace('pg_catalog.clock_timestamp()')
      this.#offsetMs = 0
      this.#frozenAt = undefined
    })
  }

  async #inTurn(change: () => Promise<void>): Promise<void> {
    const mine = this.#last.then(change)
    this.#last = mine.catch(() => {})
    await mine
  }

  async #freezeAt(time: number): Promise<void> {
    await this.#replace(`timestamptz '${new Date(time).toISOString()}'`)
    this.#frozenAt = time
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
