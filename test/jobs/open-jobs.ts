import pg from 'pg'
import { afterAll, beforeAll, beforeEach } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { type DibsEventName, type DibsEvents, onEvent } from '../../src/postgres/events.js'
import { renderSchema } from '../../src/postgres/identifier.js'
import type { OpenOptions } from '../../src/postgres/open-options.js'
import { createTestSchema, type TestSchema } from '../../src/testing/test-schema.js'
import { freshName, throughPool, url } from '../database.js'

export type EmittedEvent = { readonly event: DibsEventName } & Record<string, unknown>

export interface JobsFixture {
  readonly dibs: Dibs
  readonly pool: pg.Pool
  readonly schema: TestSchema
  /** A table for what handlers write, in a schema of its own, qualified: `(number serial, name text)`. */
  readonly log: string
  /** An instance as in another process, with a pool of its own; both are gone at the end of the test. */
  elsewhere(options?: OpenOptions, config?: pg.PoolConfig): Promise<Dibs>
  /** Rows of a statement about our own tables; `{schema}` stands for the schema. */
  query(text: string, values?: unknown[]): Promise<Record<string, unknown>[]>
  /** Lets all leases expire. */
  endLeases(): Promise<void>
  /** The values that handlers have written, in order. */
  logged(): Promise<string[]>
  /** Collects the events of all instances on this schema from now on, until the end of the test. */
  listen(...names: DibsEventName[]): EmittedEvent[]
}

/** One Dibs for a test file, on a schema whose clock can be moved; without jobs, and back in time, before each test. */
export function openJobs(): JobsFixture {
  const fixture: { dibs?: Dibs; pool?: pg.Pool; schema?: TestSchema; log: string } = { log: freshName('log') }
  const ends: (() => unknown)[] = []
  const end = async (): Promise<void> => {
    for (const one of ends.splice(0).reverse()) await one()
  }
  beforeAll(async () => {
    const pool = new pg.Pool({ connectionString: url, max: 12 })
    pool.on('error', () => {})
    const schema = await createTestSchema(pool)
    const dibs = await Dibs.open({ pool, schema: schema.name, ...throughPool })
    await pool.query(`create table ${fixture.log} (number serial, name text not null)`)
    Object.assign(fixture, { pool, schema, dibs })
  })
  beforeEach(async () => {
    await fixture.schema?.clock.reset()
    const own = ['job', 'job_history', 'queue'].map((table) => `delete from ${fixture.schema?.name}.${table}`)
    await fixture.pool?.query([...own, `delete from ${fixture.log}`].join('; '))
    return end
  })
  afterAll(async () => {
    await end()
    await fixture.dibs?.close()
    await fixture.schema?.drop()
    await fixture.pool?.query(`drop table if exists ${fixture.log}`)
    await fixture.pool?.end()
  })
  const opened = fixture as JobsFixture
  return Object.assign(opened, {
    async elsewhere(options: OpenOptions = {}, config: pg.PoolConfig = {}) {
      const pool = new pg.Pool({ connectionString: url, max: 5, ...config })
      pool.on('error', () => {})
      const dibs = await Dibs.open({
        ...{ pool, schema: opened.schema.name, migrate: 'off', ...throughPool },
        ...options,
      } as OpenOptions)
      let gone: Promise<void> | undefined
      const close = (): Promise<void> => {
        gone ??= dibs.close().then(async () => (pool.ended ? undefined : await pool.end()))
        return gone
      }
      ends.push(close)
      return dibs
    },
    async query(text: string, values?: unknown[]) {
      return (await opened.pool.query(renderSchema(text, opened.schema.name), values)).rows
    },
    async endLeases() {
      const at = "{schema}.clock() - interval '1 s'"
      await this.query(
        `update {schema}.job set lease_until = ${at} where state = 'running'; update {schema}.job_held set check_at = ${at}`,
      )
    },
    async logged() {
      const { rows } = await opened.pool.query(`select name from ${fixture.log} order by number`)
      return rows.map(({ name }) => name)
    },
    listen(...names: DibsEventName[]) {
      const events: EmittedEvent[] = []
      for (const name of names)
        ends.push(
          onEvent(name, (payload: DibsEvents[DibsEventName]) => {
            if (payload.schema === opened.schema.name) events.push({ event: name, ...payload })
          }),
        )
      return events
    },
  })
}
