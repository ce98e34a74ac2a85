import pg from 'pg'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { type DibsEventName, type DibsEvents, onEvent } from '../../src/postgres/events.js'
import { createTestSchema, type TestSchema } from '../../src/testing/test-schema.js'
import { freshName, throughPool, url, withPool } from '../database.js'

export interface ClaimsFixture {
  readonly dibs: Dibs
  /** An instance as in another process. Calls of one process wait for each other without the database. */
  readonly other: Dibs
  readonly pool: pg.Pool
  readonly schema: TestSchema
  /** A table for the callers' own writes, in a schema of its own, qualified: `(name text)`. */
  readonly log: string
  /** Runs `fn` with an instance as in another process, with its own pool. Closes both afterwards. */
  beside(fn: (dibs: Dibs, pool: pg.Pool) => Promise<void>, config?: pg.PoolConfig): Promise<void>
  /** The rows that callers have written, in order. */
  logged(): Promise<string[]>
  /** Returns the events during `fn`, which may read the events so far. */
  eventsOf(fn: (events: readonly EmittedEvent[]) => Promise<unknown>): Promise<EmittedEvent[]>
}

type EmittedEvent = [DibsEventName, Record<string, unknown>]

const eventNames: readonly DibsEventName[] = [
  'dibs:once.conflict',
  'dibs:once.waited',
  'dibs:once.replayed',
  'dibs:once.taken-over',
  'dibs:once.mismatch',
  'dibs:once.ambiguous',
  'dibs:once.gave-up',
  'dibs:once.lost',
  'dibs:once.not-stored',
  'dibs:operation.failed',
  'dibs:lock.acquired',
  'dibs:lock.contended',
  'dibs:lock.timed-out',
  'dibs:lock.released',
  'dibs:lock.not-released',
  'dibs:lock.lost',
  'dibs:lock.stolen',
  'dibs:lock.fence-rejected',
  'dibs:flight.loaded',
  'dibs:flight.failed',
  'dibs:flight.refused',
  'dibs:flight.not-published',
  'dibs:flight.unfit',
  'dibs:flight.waited',
  'dibs:flight.timed-out',
]

/** One Dibs for a test file, on a schema whose clock and waits can be bent; empty and back in time before each test. */
export function openClaims(): ClaimsFixture {
  const fixture: { dibs?: Dibs; other?: Dibs; pool?: pg.Pool; schema?: TestSchema; log: string } = {
    log: freshName('log'),
  }
  beforeAll(async () => {
    const pool = new pg.Pool({ connectionString: url, max: 12 })
    pool.on('error', () => {})
    const schema = await createTestSchema(pool)
    const dibs = await Dibs.open({ pool, schema: schema.name, ...throughPool })
    const other = await Dibs.open({ pool, schema: schema.name, migrate: 'off', ...throughPool })
    await pool.query(`create table ${fixture.log} (number serial, name text not null)`)
    Object.assign(fixture, { pool, schema, dibs, other })
  })
  beforeEach(async () => {
    await fixture.schema?.clock.reset()
    await fixture.schema?.waits.reset()
    await fixture.pool?.query(
      `delete from ${fixture.schema?.name}.claim; delete from ${fixture.schema?.name}.lock; delete from ${fixture.schema?.name}.flight; delete from ${fixture.log}`,
    )
  })
  afterAll(async () => {
    await fixture.dibs?.close()
    await fixture.other?.close()
    await fixture.schema?.drop()
    await fixture.pool?.query(`drop table if exists ${fixture.log}`)
    await fixture.pool?.end()
  })
  return Object.assign(fixture as ClaimsFixture, {
    beside: (fn: (dibs: Dibs, pool: pg.Pool) => Promise<void>, config?: pg.PoolConfig) =>
      withPool(async (pool) => {
        const schema = fixture.schema?.name
        await using dibs = await Dibs.open({ pool, schema, migrate: 'off', ...throughPool, listen: false })
        await fn(dibs, pool)
      }, config),
    async logged() {
      const { rows } = await (fixture as ClaimsFixture).pool.query(
        `select name from ${fixture.log} order by number`,
      )
      return rows.map(({ name }) => name)
    },
    async eventsOf(fn: (events: readonly EmittedEvent[]) => Promise<unknown>) {
      const events: EmittedEvent[] = []
      const stops = eventNames.map((name) =>
        onEvent(name, ({ instance: _, schema: __, ...fields }: DibsEvents[DibsEventName]) => {
          events.push([name, fields])
        }),
      )
      try {
        await fn(events)
      } finally {
        for (const stop of stops) stop()
      }
      return events
    },
  })
}
