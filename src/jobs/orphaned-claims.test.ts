import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { directUrl, dropSchema, freshName, throughPool, url } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { until } from '../../test/until.js'
import { Dibs } from '../dibs.js'
import { onEvent } from '../postgres/events.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'

const schema = freshName()

beforeAll(async () => {
  await (await Dibs.open({ url, schema, listen: false })).close()
})

afterAll(() => dropSchema(schema))

it('does not release the claim of a lost attempt as orphaned when the answer to a later claim is lost', async () => {
  await using proxy = await PgProxy.start({ url: directUrl })
  const pool = new pg.Pool({ connectionString: proxy.url })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ ...throughPool, pool, schema, migrate: 'off', listen: false })
  const lost = deferred<void>()
  const stop = onEvent('dibs:job.lost', () => lost.resolve())
  try {
    const jobs = dibs.jobs({ slow: { leaseMs: 500 } })
    const { id } = await jobs.add('slow', null)
    const gate = deferred<void>()
    let runs = 0
    await using _worker = await jobs.work(
      { slow: () => (++runs === 1 ? gate.promise : undefined) },
      { pollMs: 50 },
    )
    await until(() => runs === 1, 'the handler to start')
    // The lease expires, and no worker has noticed.
    const silenced = ['job_heartbeat', 'job_recover'].map((statement) =>
      proxy.inject({ kind: 'cut', when: 'before', statement, times: 'always' }),
    )
    await lost.promise
    const cut = proxy.inject({ kind: 'cut', when: 'after', statement: 'job_claim_full_scan' })
    await cut.happened
    const second = proxy.inject({ kind: 'cut', when: 'after', statement: 'job_claim_full_scan' })
    await second.happened // the worker has released orphaned claims before that
    for (const one of silenced) one.end()
    await until(async () => (await jobs.get(id))?.state === 'succeeded', 'the job to succeed')
    gate.resolve()
    expect((await jobs.history(id)).items.map(({ attempt, outcome }) => [attempt, outcome])).toEqual([
      [1, 'lost'],
      [2, 'succeeded'],
    ])
    expect(runs).toBe(2)
  } finally {
    stop()
    await dibs.close()
    await pool.end()
  }
})
