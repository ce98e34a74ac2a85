import { describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { indexOf } from '../../test/jobs/explored-jobs.js'
import { openJobs } from '../../test/jobs/open-job-functions.js'

/** Tests the constraints of sql/0026_job.sql, which hold for every writer. */

const fixture = openJobs()
const { rows, put, pool } = fixture

const changed = (sql: string) => rows(`update {schema}.job set ${sql} where id = 1`)
const held = "worker = 'ann', lease_until = now(), started_at = now()"
const free = 'worker = null, lease_until = null, started_at = null, cancel_at = null'
const dead = `state = 'dead', indexed_in = 'dead', error = '{}', ${free}`
const refused = { code: '23514', constraint: 'job_transition' }
const mixed = { code: '23514', constraint: 'job_state' }
const states = ['ready', 'scheduled', 'gated', 'running', 'dead'] as const

/** A job in that state, with fence 100; by a way that it may take. */
async function inState(state: (typeof states)[number]): Promise<void> {
  await put({ id: 1, state: 'running', fence: 100 })
  if (state !== 'running')
    await changed(`state = '${state}', indexed_in = ${indexOf(state)}, error = '{}', ${free}`)
}

describe('steps', () => {
  const may: Record<(typeof states)[number], readonly string[]> = {
    ready: ['ready', 'scheduled', 'gated', 'dead'],
    scheduled: ['scheduled', 'ready', 'gated', 'dead'],
    gated: ['gated', 'ready', 'dead'],
    running: ['running', 'ready', 'scheduled', 'gated', 'dead'],
    dead: ['dead', 'ready'],
  }
  const stepTo = (state: string, fence: number) =>
    changed(
      `state = '${state}', indexed_in = ${indexOf(state)}, fence = ${fence}, attempt = 1, error = '{}', ${state === 'running' ? held : free}`,
    )

  it.each(states.flatMap((from) => states.map((to) => [from, to] as const)))(
    'from %s to %s, under the same fence',
    async (from, to) => {
      await inState(from)
      const step = stepTo(to, 100)
      if (may[from].includes(to)) await step
      else await expect(step).rejects.toMatchObject(refused)
    },
  )

  it.each(states.flatMap((from) => states.map((to) => [from, to] as const)))(
    'from %s to %s, under a higher fence: only a claim has one',
    async (from, to) => {
      await inState(from)
      const step = stepTo(to, 101)
      if (from === 'ready' && to === 'running') await step
      else await expect(step).rejects.toMatchObject(refused)
    },
  )

  it.each(states)('a fence never goes back, from %s', async (from) => {
    await inState(from)
    await expect(stepTo(from === 'ready' ? 'running' : from, 99)).rejects.toMatchObject(refused)
  })

  it('is told with the job, the state and the fence', async () => {
    await inState('dead')
    await expect(stepTo('running', 101)).rejects.toThrow(
      'job 1: from dead (fence 100) to running (fence 101) is no step that a job may take',
    )
  })
})

describe('a job is born', () => {
  const born = (state: string, fence = 0, more = '') =>
    rows(`insert into {schema}.job (created_at, run_at, lane, priority, max_attempts, keep_days, input, state, indexed_in, fence, attempt, error ${more ? ', worker, lease_until, started_at' : ''})
      values (now(), now(), 1, 0, 5, 7, '1', '${state}', ${indexOf(state)}, ${fence}, 1, '{}' ${more})`)

  it.each(['ready', 'scheduled', 'gated'])('as %s', async (state) => {
    await born(state)
  })

  it('not as one that runs, nor dead, nor with a fence', async () => {
    await expect(born('running', 0, ", 'ann', now(), now()")).rejects.toMatchObject(refused)
    await expect(born('dead')).rejects.toMatchObject(refused)
    await expect(born('ready', 1)).rejects.toMatchObject(refused)
  })

  it('in no state that nobody knows', async () => {
    await expect(born('done')).rejects.toMatchObject(mixed)
  })
})

describe('what a job says of itself fits its state', () => {
  it.each(
    (['ready', 'scheduled', 'gated', 'dead'] as const).flatMap((state) =>
      [
        "worker = 'ann'",
        'lease_until = now()',
        'started_at = now()',
        'cancel_at = now()',
        ...["'ready'", "'scheduled'", "'dead'", "'none'", "'other'"]
          .filter((index) => index !== indexOf(state))
          .map((index) => `indexed_in = ${index}`),
      ].map((sql) => [state, sql]),
    ),
  )('%s: not %s', async (state, sql) => {
    await inState(state as 'ready')
    await expect(changed(`${sql}`)).rejects.toMatchObject(mixed)
  })

  it.each(['worker = null', 'lease_until = null', 'started_at = null', 'attempt = 0', "indexed_in = 'dead'"])(
    'running: not %s',
    async (sql) => {
      await inState('running')
      await expect(changed(sql)).rejects.toMatchObject(mixed)
      await changed("cancel_at = now(), indexed_in = 'none'")
    },
  )

  it('running: under a fence', async () => {
    await put({ id: 1 })
    await rows('alter table {schema}.job disable trigger job_transition')
    try {
      await expect(changed(`state = 'running', attempt = 1, ${held}`)).rejects.toMatchObject(mixed)
    } finally {
      await rows('alter table {schema}.job enable trigger job_transition')
    }
  })

  it('dead: of something', async () => {
    await inState('running')
    await expect(changed(`state = 'dead', indexed_in = 'dead', ${free}`)).rejects.toMatchObject(mixed)
    await changed(dead)
  })
})

describe('history', () => {
  const partitions = async () =>
    (
      await rows(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = '{schema}.job_history'::regclass order by 1",
      )
    ).map(({ name }) => `${name}`.split('.')[1])
  const keep = async (days: string, waitMs = 1_000) =>
    (await rows(`select {schema}.job_history_maintain('${days}', ${waitMs}) as count`))[0]?.count

  it('a day is made once, by however many at once', async () => {
    const client = await pool.connect()
    // None can attach it before all have looked for it.
    await client.query(`begin; lock table ${fixture.schema}.job_history in share update exclusive mode`)
    const made = Promise.all(
      Array.from({ length: 5 }, () => rows("select {schema}.job_history_add_partition('2030-05-01')")),
    )
    made.catch(() => {})
    try {
      const waiting = `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema}.job_history_add_partition%'`
      await until(async () => (await rows(waiting)).length === 5, 'all to wait')
    } finally {
      await client.query('rollback')
      client.release()
    }
    await made
    expect((await partitions()).filter((name) => name === 'job_history_20300501')).toHaveLength(1)
    await rows(
      "insert into {schema}.job_history (forget_on, id, fence, created_at, ended_at, lane, priority, attempt, outcome) values ('2030-05-01', 1, 1, now(), now(), 1, 0, 1, 'lost')",
    )
    expect(await rows('select id::int from {schema}.job_history_20300501')).toEqual([{ id: 1 }])
  })

  it('is made for the days that will be needed, and dropped when its day has come', async () => {
    await rows(
      "select {schema}.job_history_add_partition(d::date) from unnest('{2025-12-31,2026-01-01,2026-01-02}'::text[]) d",
    )
    expect(await keep('{1,7}')).toBe(2)
    expect((await partitions()).filter((name) => `${name}` < 'job_history_2029')).toEqual(
      ['02', '03', '04', '05', '09', '10', '11'].map((day) => `job_history_202601${day}`),
    )
    expect(await keep('{}')).toBe(0)
  })

  it('is dropped by one of several', async () => {
    for (let turn = 0; turn < 5; turn++) {
      await rows(
        "select {schema}.job_history_add_partition(d::date) from generate_series('2025-01-01'::date, '2025-01-08', '1 day') d",
      )
      const counts = await Promise.all(Array.from({ length: 6 }, () => keep('{}', 5_000)))
      expect(counts.reduce((sum: number, count) => sum + Number(count), 0)).toBe(8)
    }
  })

  it('is left to whoever is at it', async () => {
    await rows("select {schema}.job_history_add_partition('2025-05-01')")
    const client = await pool.connect()
    await client.query(
      `begin; select pg_advisory_xact_lock(hashtextextended('"${fixture.schema}":job_history', 0))`,
    )
    try {
      expect(await keep('{}')).toBe(0)
    } finally {
      await client.query('rollback')
      client.release()
    }
    expect(await keep('{}')).toBe(1)
  })

  it('a day that somebody drops by hand meanwhile is no harm', async () => {
    await rows(
      "select {schema}.job_history_add_partition(d::date) from unnest('{2025-04-01,2025-04-02}'::text[]) d",
    )
    const client = await pool.connect()
    let kept: Promise<unknown> | undefined
    try {
      await client.query(`begin; drop table ${fixture.schema}.job_history_20250401`)
      kept = keep('{}', 60_000)
      kept.catch(() => {})
      const waiting = `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema}.job_history_maintain%'`
      await until(async () => (await rows(waiting)).length === 1, 'it to wait')
    } finally {
      await client.query('commit')
      client.release()
    }
    expect(await kept).toBe(1)
  })

  it('a drop waits for a moment, and leaves the day to the next', async () => {
    await rows(
      "select {schema}.job_history_add_partition(d::date) from unnest('{2025-06-01,2025-06-02}'::text[]) d",
    )
    const client = await pool.connect()
    await client.query('begin')
    const [schema] = await rows("select '{schema}' as name")
    await client.query(`lock table ${schema?.name}.job_history_20250601 in access share mode`)
    const limitLockWait = (limit: string) =>
      rows(`create or replace function {schema}.limit_lock_wait(ms integer) returns text
        language sql volatile as $$ select pg_catalog.set_config('lock_timeout', ${limit}, true) $$`)
    // Any other bound than that of the call would never end.
    await limitLockWait(`case ms when 20 then '20' else '0' end`)
    try {
      expect(await keep('{}', 20)).toBe(1)
    } finally {
      await limitLockWait('ms::text')
      await client.query('rollback')
      client.release()
    }
    expect(await keep('{}')).toBe(1)
  })
})
