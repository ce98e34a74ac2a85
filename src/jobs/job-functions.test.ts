import { describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import type { Settling } from '../../test/jobs/job-calls.js'
import { LEASE_MS, openJobs } from '../../test/jobs/open-job-functions.js'
import { renderSchema } from '../postgres/identifier.js'

/** Tests the functions of sql/0028_job_add.sql to sql/0036_job_recover.sql: alone, and while others lock the row. */

const fixture = openJobs()
const { rows, put, passes, states, history, whileLocked, pool } = fixture
const HELD = { id: 1, fence: 100 }
const RETRY: Settling = { ...HELD, to: 'retry', error: { message: 'again' } }
const idsOf = (jobs: readonly { id: number }[] | null) => jobs?.map(({ id }) => id)
const rowOf = async (columns: string, id = 1) =>
  (await rows(`select ${columns} from {schema}.job where id = ${id}`))[0]
const row = (id: number) => `select from {schema}.job where id = ${id}`

describe('lanes', () => {
  it('one is made once, by however many at once', async () => {
    const found = await Promise.all(
      Array.from({ length: 20 }, () => rows("select {schema}.job_lane_id('q', 'new', 1) as id")),
    )
    expect(new Set(found.map(([lane]) => lane?.id)).size).toBe(1)
    const [other] = await rows("select {schema}.job_lane_id('q', 'new', 2) as id")
    expect(other?.id).not.toBe(found[0]?.[0]?.id)
  })

  it('one that another is just making is waited for', async () => {
    const ask = "select {schema}.job_lane_id('q', 'slow', 1) as id"
    const client = await pool.connect()
    try {
      await client.query('begin')
      const made = (await client.query(renderSchema(ask, fixture.schema))).rows
      const found = rows(ask)
      const waiting = `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema}%job_lane_id%slow%'`
      await until(async () => (await pool.query(waiting)).rows.length === 1, 'it to wait')
      await client.query('commit')
      expect(await found).toEqual(made)
    } finally {
      client.release()
    }
  })
})

describe('adding', () => {
  const kind = { queue: 'q', name: 'one', version: 1, priority: 0, runAt: 'null', delayMs: 'null' }
  type Kind = { [key in keyof typeof kind]: string | number }
  const add = async (kinds: Kind[], inputs: unknown[], places = '{}') => {
    const column = (key: keyof Kind) => `'{${kinds.map((one) => one[key]).join(',')}}'`
    const all = (value: string) => `'{${kinds.map(() => value).join(',')}}'`
    const [added] = await rows(
      `select {schema}.job_add(${column('queue')}, ${column('name')}, ${column('version')}, ${column('priority')}, ${column('runAt')}, ${column('delayMs')},
        ${all('null')}, ${all('5')}, ${all('7')}, '${JSON.stringify(inputs)}', '${places}', '{}')::text as ids`,
    )
    return added?.ids
  }

  it('what is not due yet is scheduled, what is due is ready', async () => {
    await add(
      [kind, { ...kind, delayMs: 1, priority: 3 }, { ...kind, runAt: Date.parse('2026-01-01T00:00:00Z') }],
      [1, 2, 3],
      '{1,2,3}',
    )
    expect(await rows('select state, priority, input from {schema}.job order by id')).toEqual([
      { state: 'ready', priority: 0, input: 1 },
      { state: 'scheduled', priority: 3, input: 2 },
      { state: 'ready', priority: 0, input: 3 },
    ])
  })

  it('each goes to the lane of its queue, name and version', async () => {
    const kinds = [
      kind,
      kind,
      { ...kind, name: 'two' },
      { ...kind, name: 'two', queue: 'other' },
      { ...kind, version: 2 },
      { ...kind, version: 3 },
    ]
    await add(kinds, [1, 2, 3, 4, 5, 6], '{1,2,3,4,5,6}')
    expect(
      await rows(
        'select l.queue, l.name, l.version from {schema}.job j join {schema}.lane l on l.id = j.lane order by j.id',
      ),
    ).toEqual(kinds.map(({ queue, name, version }) => ({ queue, name, version })))
  })

  it('in another language', async () => {
    await rows(
      `select {schema}.add_job('one', '"hi"', 'q'), {schema}.add_job('one', '1', 'q', run_at => '2026-01-01 00:00:01Z')`,
    )
    expect(await rows('select state, lane from {schema}.job order by id')).toEqual([
      { state: 'ready', lane: 1 },
      { state: 'scheduled', lane: 1 },
    ])
    await expect(rows("select {schema}.add_job('one', max_attempts => 0)")).rejects.toThrow('max_attempts')
    await expect(rows("select {schema}.add_job('one', keep_days => 367)")).rejects.toThrow('keep_days')
  })
})

describe('a claim', () => {
  it('touches no index, nor do the ends of what is soon over', async () => {
    await put(...Array.from({ length: 200 }, (_, n) => ({ id: n + 1 })))
    const client = await pool.connect()
    try {
      const ask = async (sql: string) => (await client.query(renderSchema(sql, fixture.schema))).rows[0]
      await client.query('begin')
      await ask(`select {schema}.job_claim('{ann}', '{200}', '{1}', '{0}', '{0}', '{60000}')`)
      const told = await ask(`
        select pg_stat_get_xact_tuples_updated(o)::int as updated, pg_stat_get_xact_tuples_hot_updated(o)::int as hot
        from (select '{schema}.job'::regclass::oid as o) t`)
      expect(told).toEqual({ updated: 200, hot: 200 })
    } finally {
      await client.query('rollback')
      client.release()
    }
  })

  it('leaves the job in the line, and its first heartbeat takes it out', async () => {
    await put({ id: 1 }, { id: 2 })
    const jobs = (await fixture.jobs.claim('ann', 2)) ?? []
    expect(await rowOf('indexed_in')).toEqual({ indexed_in: 'ready' })
    await fixture.jobs.beat(jobs)
    expect(await rowOf('indexed_in')).toEqual({ indexed_in: 'none' })
    await fixture.jobs.settle(...jobs.map(({ id, fence }) => ({ id, fence, to: 'release' as const })))
    expect(await rowOf('indexed_in')).toEqual({ indexed_in: 'ready' })
  })
})

describe('claiming', () => {
  const ways = [
    [
      'from a place',
      (count: number, lanes?: number[]) => fixture.jobs.claim('ann', count, lanes ? { lanes } : {}),
    ],
    ['from the start', (count: number, lanes?: number[]) => fixture.jobs.probe('ann', count, lanes)],
    [
      'carefully',
      async (count: number, lanes?: number[]) =>
        (await fixture.jobs.claimCarefully('ann', count, lanes))?.jobs ?? null,
    ],
  ] as const

  describe.each(ways)('%s', (_, claim) => {
    it('takes what is ready, of its lanes, so many, the oldest first', async () => {
      await put(
        { id: 4 },
        { id: 1 },
        { id: 2, lane: 2 },
        { id: 3 },
        { id: 5, state: 'scheduled' },
        { id: 6, state: 'running' },
        { id: 7, state: 'dead' },
      )
      expect(idsOf(await claim(2))).toEqual([1, 3])
      expect(idsOf(await claim(9))).toEqual([4])
      expect(await claim(9)).toEqual([])
      expect(await states()).toEqual({
        1: 'running',
        2: 'ready',
        3: 'running',
        4: 'running',
        5: 'scheduled',
        6: 'running',
        7: 'dead',
      })
      expect(
        await rowOf(
          "worker, attempt, fence > 0 as fenced, started_at = lease_until - interval '60 seconds' as leased",
        ),
      ).toEqual({ worker: 'ann', attempt: 1, fenced: true, leased: true })
    })

    it('waits for nobody, and takes the rest', async () => {
      await put({ id: 1 }, { id: 2 })
      expect(idsOf(await whileLocked(row(1), () => claim(2)))).toEqual([2])
      expect(idsOf(await claim(2))).toEqual([1])
    })

    it('leaves what is paused, and begins nothing while a queue is being paused', async () => {
      await put({ id: 1 }, { id: 2, lane: 3 })
      await fixture.jobs.pause('q')
      expect(idsOf(await claim(2, [1, 3]))).toEqual([2])
      expect(await fixture.jobs.resume('q')).toBe('resumed')
      expect(await fixture.jobs.resume('q')).toBe('running')
      const client = await pool.connect()
      await client.query(`begin; select pg_advisory_xact_lock(${fixture.schema}.job_claim_lock_key())`)
      try {
        expect(await claim(2)).toBe(null)
      } finally {
        await client.query('rollback')
        client.release()
      }
      expect(idsOf(await claim(2))).toEqual([1])
    })

    it('does not run what has expired, also at that moment: that is for those who end it', async () => {
      await put(
        { id: 1, expiresAt: '2026-01-01T00:00:00Z' },
        { id: 2, expiresAt: '2026-01-01T00:00:00.001Z' },
        { id: 3, expiresAt: '2025-01-01', keepDays: 0 },
      )
      expect(idsOf(await claim(3))).toEqual([2])
      expect(await states()).toEqual({ 1: 'ready', 2: 'running', 3: 'ready' })
      expect(await history()).toEqual([])
    })

    it('a fence is higher than any that the job has had, whatever the others had', async () => {
      const high = (Date.parse('2026-01-01T00:00:00Z') + 1_000) * 1_000
      await put({ id: 1 }, { id: 2, fence: high, attempt: 1 })
      expect((await claim(2))?.find(({ id }) => id === 2)?.fence).toBeGreaterThan(high)
    })

    it('a fence grows, also when the clock goes back, and attempts are counted', async () => {
      await put({ id: 1, fence: 8e15 })
      const [job] = (await claim(1)) ?? []
      expect([job?.fence, job?.attempt]).toEqual([8e15 + 1, 2])
      expect(await rowOf('fence::float8, attempt')).toEqual({ fence: 8e15 + 1, attempt: 2 })
    })
  })

  it('from a place: of its priority, and behind the one that is known', async () => {
    await put({ id: 1 }, { id: 2 }, { id: 3, priority: 5 }, { id: 4, priority: 7 })
    expect(
      idsOf(await fixture.jobs.claim('ann', 9, { lanes: [1, 1], priorities: [5, 0], afters: [0, 1] })),
    ).toEqual([3, 2])
    expect(await states()).toEqual({ 1: 'ready', 2: 'running', 3: 'running', 4: 'ready' })
  })

  it('from the start: the most urgent first', async () => {
    await put({ id: 1 }, { id: 2, priority: 5 }, { id: 3, priority: -1 }, { id: 4, priority: 5 })
    expect(idsOf(await fixture.jobs.probe('ann', 1))).toEqual([2])
    expect(idsOf((await fixture.jobs.claimCarefully('ann', 1))?.jobs ?? [])).toEqual([4])
    expect(idsOf(await fixture.jobs.probe('ann', 1))).toEqual([1])
  })

  it.each([
    ['from a place', "job_claim('{bob}', '{1}', '{1,3}', '{0,0}', '{0,0}', '{1000,1000}')"],
    ['from the start', "job_claim_full_scan('{bob}', '{1}', '{1,3}', '{1000,1000}')"],
  ])('%s: what it has no room for is left to others, also while it is at it', async (_, call) => {
    await put({ id: 1 }, { id: 2 }, { id: 3, lane: 3 })
    const client = await pool.connect()
    await client.query(`begin; select ${fixture.schema}.${call}`)
    try {
      expect(idsOf(await fixture.jobs.probe('ann', 9, [1, 3]))).toEqual([2, 3])
    } finally {
      await client.query('rollback')
      client.release()
    }
  })

  it('for several workers: so many for each, in turn', async () => {
    await put({ id: 1 }, { id: 2 }, { id: 3 }, { id: 4 })
    await rows("select {schema}.job_claim('{ann,bob,eve}', '{1,2,5}', '{1}', '{0}', '{0}', '{1000}')")
    expect(await rows('select worker from {schema}.job order by id')).toEqual(
      ['ann', 'bob', 'bob', 'eve'].map((worker) => ({ worker })),
    )
  })

  describe('a row that cannot be claimed', () => {
    const bad = { id: 1, fence: '9223372036854775807' }

    it('fails a claim whole, and is set aside by a careful one, with the reason', async () => {
      await put(bad, { id: 2 }, { id: 3 }, { id: 4 })
      await expect(fixture.jobs.claim('ann', 2)).rejects.toThrow('out of range')
      await expect(fixture.jobs.probe('ann', 2)).rejects.toThrow('out of range')
      const told = await fixture.jobs.claimCarefully('ann', 2)
      expect([idsOf(told?.jobs ?? []), told?.quarantined, told?.stuck]).toEqual([[2, 3], [1], []])
      expect(await states()).toEqual({ 1: 'dead', 2: 'running', 3: 'running', 4: 'ready' })
      expect(await rowOf('error')).toEqual({
        error: { name: 'QuarantinedError', message: 'It could not be claimed: bigint out of range' },
      })
    })

    it('is not one that runs', async () => {
      await put({ id: 1, state: 'running' }, { id: 2 })
      const told = await fixture.jobs.claimCarefully('ann', 2)
      expect([idsOf(told?.jobs ?? []), told?.quarantined, told?.stuck]).toEqual([[2], [], []])
    })

    it('is not to blame where something may not be done', async () => {
      await put({ id: 1 }, { id: 2 })
      await rows('alter table {schema}.job_held rename to job_held_away')
      try {
        await expect(fixture.jobs.claimCarefully('ann', 2)).rejects.toThrow('job_held')
        expect(await states()).toEqual({ 1: 'ready', 2: 'ready' })
      } finally {
        await rows('alter table {schema}.job_held_away rename to job_held')
      }
    })

    it('is not to blame where the server is full, or read-only', async () => {
      await put({ id: 1 }, { id: 2 })
      await rows(`create function {schema}.full() returns trigger language plpgsql as $$ begin raise 'no space' using errcode = 'disk_full'; end $$;
        create trigger fill before update on {schema}.job for each row execute function {schema}.full()`)
      try {
        await expect(fixture.jobs.claimCarefully('ann', 2)).rejects.toThrow('no space')
        expect(await states()).toEqual({ 1: 'ready', 2: 'ready' })
      } finally {
        await rows('drop trigger fill on {schema}.job; drop function {schema}.full()')
      }
    })

    it('that cannot be set aside either is left, and the rest is claimed', async () => {
      await put(bad, { id: 2 })
      await rows(`create function {schema}.keep() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
        create trigger keep before update on {schema}.job for each row when (new.state = 'dead') execute function {schema}.keep()`)
      try {
        const told = await fixture.jobs.claimCarefully('ann', 2)
        expect([idsOf(told?.jobs ?? []), told?.quarantined, told?.stuck]).toEqual([[2], [], [1]])
        expect(await states()).toEqual({ 1: 'ready', 2: 'running' })
      } finally {
        await rows('drop trigger keep on {schema}.job; drop function {schema}.keep()')
      }
    })
  })
})

describe('promotion', () => {
  const due = (id: number, runAt: string) => ({ id, state: 'scheduled' as const, runAt })

  it('makes ready what is due, the longest due first, and says when the next is', async () => {
    await put(due(1, '2026-01-01T00:00:00Z'), due(2, '2025-01-01'), due(3, '2026-01-01T00:00:00.250Z'), {
      id: 4,
      state: 'dead',
    })
    expect(await fixture.jobs.promote(1)).toEqual({ count: 1, queues: ['q'], dueInMs: 250 })
    expect(await states()).toEqual({ 1: 'scheduled', 2: 'ready', 3: 'scheduled', 4: 'dead' })
    expect(await fixture.jobs.promote()).toEqual({ count: 1, queues: ['q'], dueInMs: 250 })
    await passes(250)
    expect(await fixture.jobs.promote()).toEqual({ count: 1, queues: ['q'], dueInMs: null })
    expect(await fixture.jobs.promote()).toEqual({ count: 0, queues: [], dueInMs: null })
  })

  it('waits for nobody', async () => {
    await put(due(1, '2025-01-01'), due(2, '2025-01-02'))
    expect((await whileLocked(row(1), () => fixture.jobs.promote())).count).toBe(1)
    expect(await states()).toEqual({ 1: 'scheduled', 2: 'ready' })
  })
})

describe('expiry', () => {
  it('ends what waits and has expired, so many, the first first, and nothing else', async () => {
    const expiresAt = '2026-01-01T00:00:00Z'
    await put(
      { id: 1, expiresAt },
      { id: 2, expiresAt: '2025-01-01', state: 'scheduled' },
      { id: 3, expiresAt: '2026-01-01T00:00:01Z' },
      { id: 4 },
    )
    await put(
      { id: 5, expiresAt, state: 'running' },
      { id: 6, expiresAt, state: 'dead' },
      { id: 7, expiresAt, keepDays: 0 },
    )
    expect(await fixture.jobs.expire(1)).toBe(1)
    expect(await history()).toEqual([{ id: 2, fence: 0, outcome: 'expired' }])
    expect(await fixture.jobs.expire()).toBe(2)
    expect(await fixture.jobs.expire()).toBe(0)
    expect(await states()).toEqual({ 3: 'ready', 4: 'ready', 5: 'running', 6: 'dead' })
    expect(idsOf((await history()) as { id: number }[])).toEqual([1, 2])
  })

  it('waits for nobody', async () => {
    await put({ id: 1, expiresAt: '2025-01-01' }, { id: 2, expiresAt: '2025-01-02' })
    expect(await whileLocked(row(1), () => fixture.jobs.expire())).toBe(1)
    expect(await states()).toEqual({ 1: 'ready' })
  })
})

describe('success', () => {
  it('is recorded of what is held under that fence, with its result, and of nothing else', async () => {
    await put(
      { id: 1, state: 'running' },
      { id: 2, state: 'running', fence: 101 },
      { id: 3, fence: 100 },
      { id: 4, state: 'dead' },
      { id: 5, state: 'running', keepDays: 0 },
    )
    const held = [1, 2, 3, 4, 5, 6].map((id) => ({ id, fence: 100 }))
    expect(await fixture.jobs.complete(held, { results: ['a', 'b', 'c', 'd', 'e', 'f'] })).toEqual([1, 5])
    expect(
      await rows('select id::int, outcome, result, worker, attempt, input from {schema}.job_history'),
    ).toEqual([{ id: 1, outcome: 'succeeded', result: 'a', worker: 'old', attempt: 1, input: { n: 1 } }])
    expect(await states()).toEqual({ 2: 'running', 3: 'ready', 4: 'dead' })
    expect(await fixture.jobs.complete(held)).toEqual([])
  })

  it('is told apart by its own fence: one that was lost beside others of the claim that has taken over', async () => {
    await put(...[1, 2].map((id) => ({ id, state: 'running' as const, fence: 101 })))
    expect(await fixture.jobs.complete([HELD, { id: 2, fence: 101 }], { results: ['late', 'good'] })).toEqual(
      [2],
    )
    expect(await states()).toEqual({ 1: 'running' })
    expect(await rows('select id::int, fence::int, result from {schema}.job_history')).toEqual([
      { id: 2, fence: 101, result: 'good' },
    ])
  })

  it('makes the day that it is kept until', async () => {
    await rows('drop table if exists {schema}.job_history_20260104')
    await put({ id: 1, state: 'running', keepDays: 2 }, { id: 2, state: 'running', keepDays: 2 })
    await fixture.jobs.complete([HELD], { keepDays: [2] })
    await fixture.jobs.completeOne({ id: 2, fence: 100 }, undefined, 2)
    expect(await rows('select id::int from {schema}.job_history_20260104 order by id')).toEqual([
      { id: 1 },
      { id: 2 },
    ])
  })

  it('with others waits for nobody; by itself it waits, and says what it has found', async () => {
    await put({ id: 1, state: 'running' }, { id: 2, state: 'running' })
    expect(await whileLocked(row(1), () => fixture.jobs.complete([HELD, { id: 2, fence: 100 }]))).toEqual([2])
    expect(await fixture.jobs.completeOne({ id: 1, fence: 99 })).toBe('lost')
    let waiting: Promise<string> | undefined
    await whileLocked(row(1), async () => {
      waiting = fixture.jobs.completeOne(HELD)
      await until(
        async () =>
          (
            await rows(
              "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%job_complete_one%'",
            )
          ).length > 0,
        'it to wait',
      )
    })
    expect(await waiting).toBe('done')
    expect(await fixture.jobs.completeOne(HELD)).toBe('done')
    const [told] = await whileLocked(row(1), () =>
      rows('select {schema}.job_complete_one(1, 100, null, 7, 20) as state'),
    )
    expect(told?.state).toBe('done')
    expect(await history()).toEqual([1, 2].map((id) => ({ id, fence: 100, outcome: 'succeeded' })))
  })

  it('by itself waits no longer than it was told', async () => {
    await put({ id: 1, state: 'running' })
    const [told] = await whileLocked(row(1), () =>
      rows('select {schema}.job_complete_one(1, 100, null, 7, 20) as state'),
    )
    expect(told?.state).toBe('locked')
  })

  it('is not what another attempt, or another end, was', async () => {
    await put({ id: 1, state: 'running' })
    await fixture.jobs.settle(RETRY)
    expect(await fixture.jobs.completeOne(HELD)).toBe('lost')
    const [job] = (await fixture.jobs.claim('ann')) ?? []
    await fixture.jobs.complete([job as { id: number; fence: number }])
    expect(await fixture.jobs.completeOne(HELD)).toBe('lost')
  })
})

describe('other ends', () => {
  const to = (id: number, how: Settling['to'], delayMs = 0): Settling => ({
    id,
    fence: 100,
    to: how,
    delayMs,
  })

  it('each leaves the job where it belongs, and its attempt counts, or does not', async () => {
    await put(...[1, 2, 3, 4, 5, 6].map((id) => ({ id, state: 'running' as const, attempt: 3 })))
    const told = await fixture.jobs.settle(
      ...[
        to(1, 'retry'),
        to(2, 'retry', 250),
        to(3, 'dead'),
        to(4, 'snooze', 500),
        to(5, 'release'),
        to(6, 'canceled'),
      ],
    )
    expect(told.toSorted((a, b) => a.id - b.id).map(({ state }) => state)).toEqual([
      'ready',
      'scheduled',
      'dead',
      'scheduled',
      'ready',
      'canceled',
    ])
    expect(
      await rows(
        "select attempt, (extract(epoch from run_at - '2026-01-01T00:00:00Z') * 1000)::int as ms, worker from {schema}.job order by id",
      ),
    ).toEqual([
      { attempt: 3, ms: 0, worker: null },
      { attempt: 3, ms: 250, worker: null },
      { attempt: 3, ms: 0, worker: null },
      { attempt: 2, ms: 500, worker: null },
      { attempt: 2, ms: 0, worker: null },
    ])
    expect(await rows('select id::int, outcome, input from {schema}.job_history order by id')).toEqual([
      ...[1, 2].map((id) => ({ id, outcome: 'failed', input: null })),
      // The history keeps the input of a dead job, in case the job is discarded.
      { id: 3, outcome: 'failed', input: { n: 3 } },
      { id: 6, outcome: 'canceled', input: { n: 6 } },
    ])
  })

  it('of what is held under that fence, and of nothing else', async () => {
    await put({ id: 1, state: 'running', fence: 101 }, { id: 2, fence: 100 }, { id: 3, state: 'dead' })
    expect(await fixture.jobs.settle(to(1, 'dead'), to(2, 'dead'), to(3, 'retry'), to(4, 'dead'))).toEqual([])
    expect(await states()).toEqual({ 1: 'running', 2: 'ready', 3: 'dead' })
    expect([
      await fixture.jobs.settleOne(to(1, 'dead')),
      await fixture.jobs.settleOne(to(2, 'retry')),
    ]).toEqual(['lost', 'lost'])
    expect(await history()).toEqual([])
  })

  it('with others waits for nobody; by itself it is told that it was done before', async () => {
    await put({ id: 1, state: 'running' }, { id: 2, state: 'running' })
    const told = await whileLocked(row(1), () => fixture.jobs.settle(to(1, 'retry'), to(2, 'retry')))
    expect(told).toEqual([{ id: 2, state: 'ready' }])
    expect([await fixture.jobs.settleOne(RETRY), await fixture.jobs.settleOne(RETRY)]).toEqual([
      'done',
      'done',
    ])
    expect(await history()).toEqual([1, 2].map((id) => ({ id, fence: 100, outcome: 'failed' })))
  })

  it.each(['dead', 'canceled'] as const)(
    'of one that has lost the job beside one that holds it, the second counts: the first says %s',
    async (how) => {
      const stale: Settling = { id: 1, fence: 99, to: how, error: { message: 'stale' } }
      for (const items of [
        [stale, RETRY],
        [RETRY, stale],
      ]) {
        await rows('truncate {schema}.job, {schema}.job_held, {schema}.job_history')
        await put({ id: 1, state: 'running' })
        expect(await fixture.jobs.settle(...items)).toEqual([{ id: 1, state: 'ready' }])
        expect(await history()).toEqual([{ id: 1, fence: 100, outcome: 'failed' }])
        expect(await rowOf("state, error ->> 'message' as message")).toEqual({
          state: 'ready',
          message: 'again',
        })
      }
    },
  )

  it('by itself is not what became of the job after it was lost', async () => {
    await put({ id: 1, state: 'running' })
    await passes(1_000)
    await fixture.jobs.recover()
    expect(await fixture.jobs.settleOne(RETRY)).toBe('lost')
    expect(await fixture.jobs.cancel(1)).toBe('canceled')
    expect(await fixture.jobs.settleOne(RETRY)).toBe('lost')
  })

  it('what is not kept leaves nothing', async () => {
    await put({ id: 1, state: 'running', keepDays: 0 }, { id: 2, state: 'running', keepDays: 0 })
    await fixture.jobs.settle(to(1, 'dead'), to(2, 'canceled'))
    expect([await history(), await states()]).toEqual([[], { 1: 'dead' }])
  })

  it('of what somebody has canceled: it is over, with the reason', async () => {
    await put({ id: 1, state: 'running' })
    expect(await fixture.jobs.cancel(1)).toBe('canceling')
    expect(await fixture.jobs.settle(to(1, 'release'))).toEqual([{ id: 1, state: 'canceled' }])
    expect(
      await rows("select outcome, error ->> 'message' as reason, input from {schema}.job_history"),
    ).toEqual([{ outcome: 'canceled', reason: 'no more', input: { n: 1 } }])
  })
})

describe('a heartbeat', () => {
  it('puts off the end of what is held under that fence, and tells of the rest', async () => {
    await put(
      { id: 1, state: 'running' },
      { id: 2, state: 'running', fence: 101 },
      { id: 3, fence: 100 },
      { id: 4, state: 'running' },
    )
    await rows("update {schema}.job set lease_until = '2026-02-01' where id = 4")
    await fixture.jobs.cancel(4)
    await rows("insert into {schema}.worker values ('ann', 'host', 1, '{1}', 1, '2025-01-01', '2025-01-01')")
    const held = [1, 2, 3, 4].map((id) => ({ id, fence: 100 }))
    expect(await fixture.jobs.beat(held, ['ann', 'bob'])).toEqual({
      lost: [2, 3],
      locked: [],
      canceled: { 4: { name: 'JobCanceledError', message: 'no more' } },
      unknown: ['bob'],
    })
    expect(await fixture.jobs.beat([HELD], ['ann'])).toEqual({
      lost: [],
      locked: [],
      canceled: {},
      unknown: [],
    })
    expect(await rows('select lease_until from {schema}.job order by id')).toEqual([
      { lease_until: new Date(Date.parse('2026-01-01T00:00:00Z') + LEASE_MS) },
      { lease_until: new Date('2026-01-01T00:00:01Z') },
      { lease_until: null },
      // A heartbeat does not shorten a lease that was extended further.
      { lease_until: new Date('2026-02-01T00:00:00Z') },
    ])
    expect(await rows("select seen_at = '2026-01-01T00:00:00Z' as seen from {schema}.worker")).toEqual([
      { seen: true },
    ])
  })

  it('revives no lease that has run out', async () => {
    await put({ id: 1, state: 'running' })
    await passes(1_000)
    expect(await fixture.jobs.beat([HELD])).toMatchObject({ lost: [1], locked: [] })
    expect(await fixture.jobs.tell(HELD, { half: true })).toBe('lost')
    expect(await rowOf('lease_until, progress')).toEqual({
      lease_until: new Date('2026-01-01T00:00:01Z'),
      progress: null,
    })
  })

  it('waits for nobody, and says whom it has passed over', async () => {
    await put({ id: 1, state: 'running' }, { id: 2, state: 'running' })
    const told = await whileLocked(row(1), () => fixture.jobs.beat([HELD, { id: 2, fence: 100 }]))
    expect(told).toMatchObject({ lost: [], locked: [1] })
  })

  it('of a handler: how far it is, and for how long', async () => {
    await put({ id: 1, state: 'running' })
    expect(await fixture.jobs.tell(HELD, { half: true }, 5_000)).toBe('held')
    expect(await fixture.jobs.tell({ id: 1, fence: 99 }, {})).toBe('lost')
    expect(await rowOf('lease_until, progress')).toEqual({
      lease_until: new Date('2026-01-01T00:00:05Z'),
      progress: { half: true },
    })
    const [told] = await rows('select {schema}.job_record_progress(1, 100, null, 1, 1000) as state')
    expect(told?.state).toBe('held')
    expect(await rowOf('lease_until, progress')).toEqual({
      lease_until: new Date('2026-01-01T00:00:05Z'),
      progress: { half: true },
    })
  })

  it('of a handler that had to wait: its lease may have run out meanwhile', async () => {
    await put({ id: 1, state: 'running' })
    let telling: Promise<string> | undefined
    await whileLocked(row(1), async () => {
      telling = fixture.jobs.tell(HELD, { half: true })
      await until(
        async () =>
          (
            await rows(
              "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%job_record_progress%'",
            )
          ).length > 0,
        'it to wait',
      )
      await passes(1_000)
    })
    expect(await telling).toBe('lost')
  })
})

describe('what was left by workers that are gone', () => {
  it('is ready again, or dead if that was its last attempt, or over if it was canceled', async () => {
    await put(
      { id: 1, state: 'running', attempt: 4 },
      { id: 2, state: 'running', attempt: 5 },
      { id: 3, state: 'running' },
      { id: 4, state: 'running', keepDays: 0 },
    )
    await fixture.jobs.cancel(3)
    expect(await fixture.jobs.recover()).toEqual([])
    await passes(1_000)
    const told = await fixture.jobs.recover()
    expect(
      told
        .toSorted((a, b) => a.id - b.id)
        .map(({ id, state, worker, attempt }) => [id, state, worker, attempt]),
    ).toEqual([
      [1, 'ready', 'old', 4],
      [2, 'dead', 'old', 5],
      [3, 'canceled', 'old', 1],
      [4, 'ready', 'old', 1],
    ])
    expect(await rows('select id::int, outcome, input from {schema}.job_history order by id')).toEqual([
      { id: 1, outcome: 'lost', input: null },
      { id: 2, outcome: 'lost', input: null },
      { id: 3, outcome: 'canceled', input: { n: 3 } },
    ])
    expect(await rowOf("error ->> 'message' as message, worker")).toEqual({
      message: 'Attempt 4 of 5 has no recorded outcome: the lease of old expired.',
      worker: null,
    })
    expect(await states()).toEqual({ 1: 'ready', 2: 'dead', 4: 'ready' })
  })

  it('is taken so many at a time, the oldest first; what is held is left alone, and nobody is waited for', async () => {
    await put(...[1, 2, 3, 4].map((id) => ({ id, state: 'running' as const })), { id: 5 })
    await fixture.jobs.beat([{ id: 2, fence: 100 }])
    await passes(1_000)
    expect(idsOf(await whileLocked(row(1), () => fixture.jobs.recover(1)))).toEqual([3])
    expect(idsOf(await fixture.jobs.recover())?.toSorted()).toEqual([1, 4])
    expect(await states()).toEqual({ 1: 'ready', 2: 'running', 3: 'ready', 4: 'ready', 5: 'ready' })
  })

  const held = () => rows('select ids::int[] as ids, check_at as "lookAt" from {schema}.job_held order by id')
  const at = (ms: number) => new Date(Date.parse('2026-01-01T00:00:00Z') + ms)

  it('is left to whoever looks at its claim just now', async () => {
    await put({ id: 1, state: 'running' }, { id: 2, state: 'running' })
    await passes(1_000)
    const claimOf1 = "select from {schema}.job_held where ids = '{1}'"
    expect(idsOf(await whileLocked(claimOf1, () => fixture.jobs.recover()))).toEqual([2])
    const over = await rows("select id from {schema}.job_held where ids = '{1}'")
    await rows("update {schema}.job_held set check_at = '2030-01-01'")
    const ids = over.map(({ id }) => Number(id))
    expect(await whileLocked(claimOf1, () => fixture.jobs.recover(10, ids))).toEqual([])
    expect(idsOf(await fixture.jobs.recover(10, ids))).toEqual([1])
  })

  it('is found by its claim, also where leases are not of one length', async () => {
    await put({ id: 1 }, { id: 2, lane: 2 })
    await rows("select {schema}.job_claim('{ann}', '{2}', '{1,2}', '{0,0}', '{0,0}', '{60000,1000}')")
    expect(await held()).toEqual([{ ids: [1, 2], lookAt: at(1_000) }])
    await passes(1_000)
    expect(idsOf(await fixture.jobs.recover())).toEqual([2])
    expect(await held()).toEqual([{ ids: [1, 2], lookAt: at(60_000) }])
  })

  it('is found by its claim, which is looked at when the first of its leases may be over', async () => {
    await put({ id: 1 }, { id: 2 })
    const [first, second] = (await fixture.jobs.claim('ann', 2)) ?? []
    if (!first || !second) throw new Error('nothing was claimed')
    expect(await held()).toEqual([{ ids: [1, 2], lookAt: at(LEASE_MS) }])
    await passes(LEASE_MS / 2)
    await fixture.jobs.beat([second])
    await fixture.jobs.recover(10, [first.batch.id])
    expect(await held()).toEqual([{ ids: [1, 2], lookAt: at(LEASE_MS) }])
    await fixture.jobs.complete([first])
    await passes(LEASE_MS)
    expect(await fixture.jobs.recover()).toEqual([])
    expect(await held()).toEqual([{ ids: [1, 2], lookAt: at(LEASE_MS * 1.5) }])
    await passes(LEASE_MS * 1.5)
    expect(idsOf(await fixture.jobs.recover())).toEqual([2])
    expect(await held()).toEqual([])
  })

  it('a claim that is said to be over is looked at now, and kept while any of its jobs is held', async () => {
    await put({ id: 1 }, { id: 2 })
    const jobs = (await fixture.jobs.claim('ann', 2)) ?? []
    const over = jobs.slice(0, 1).map((job) => job.batch.id)
    for (const job of jobs) {
      expect(await fixture.jobs.recover(10, over)).toEqual([])
      expect(await held()).toHaveLength(1)
      await fixture.jobs.complete([job])
    }
    await fixture.jobs.recover()
    expect(await held()).toHaveLength(1)
    await fixture.jobs.recover(10, over)
    expect(await held()).toEqual([])
  })

  it('whose row another has is looked for a second later, and one too many at once', async () => {
    await put(...[1, 2, 3].map((id) => ({ id })))
    await fixture.jobs.claim('ann', 3)
    await passes(LEASE_MS)
    expect(idsOf(await whileLocked(row(1), () => fixture.jobs.recover(1)))).toEqual([2])
    expect((await held())[0]?.lookAt).toEqual(at(LEASE_MS))
    expect(idsOf(await whileLocked(row(1), () => fixture.jobs.recover(10)))).toEqual([3])
    expect((await held())[0]?.lookAt).toEqual(at(LEASE_MS + 1_000))
    expect(await fixture.jobs.recover()).toEqual([])
    await passes(LEASE_MS + 1_000)
    expect(idsOf(await fixture.jobs.recover())).toEqual([1])
  })

  it('one that cannot be taken keeps none of the others, and is told of where it is the only one', async () => {
    await put(...[1, 2, 3].map((id) => ({ id, state: 'running' as const })))
    await rows(`create function {schema}.keep() returns trigger language plpgsql as $$ begin raise 'it stays'; end $$;
      create trigger keep before update on {schema}.job for each row when (old.id = 2) execute function {schema}.keep()`)
    try {
      await passes(1_000)
      expect(idsOf(await fixture.jobs.recover())).toEqual([1, 3])
      await passes(2_000)
      await expect(fixture.jobs.recover()).rejects.toThrow('it stays')
    } finally {
      await rows('drop trigger keep on {schema}.job; drop function {schema}.keep()')
    }
    expect(idsOf(await fixture.jobs.recover())).toEqual([2])
  })

  it('what a worker holds and does not know of is given back, and counts for nothing', async () => {
    await put(
      { id: 1, state: 'running', worker: 'ann' },
      { id: 2, state: 'running', worker: 'ann' },
      { id: 3, state: 'running', worker: 'bob' },
    )
    // Ann has had it before.
    await rows("insert into {schema}.job_held (worker, check_at, ids) values ('ann', '2030-01-01', '{3}')")
    const [told] = await rows("select {schema}.job_release_orphaned('{ann}', '{2}') as count")
    expect(told?.count).toBe(1)
    expect(await rows('select state, attempt from {schema}.job order by id')).toEqual([
      { state: 'ready', attempt: 0 },
      { state: 'running', attempt: 1 },
      { state: 'running', attempt: 1 },
    ])
    expect((await rows("select {schema}.job_release_orphaned('{ann}', '{2}') as count"))[0]?.count).toBe(0)
  })
})

it('a plan that was made while there was little to read does not read all when there is much', async () => {
  const client = await pool.connect()
  const ask = async (sql: string) => (await client.query(renderSchema(sql, fixture.schema))).rows[0]
  const statements = (ids: string, fence: number) => [
    `job_claim('{ann}', '{2}', '{1}', '{0}', '{0}', '{60000}')`,
    `job_claim_full_scan('{ann}', '{2}', '{1}', '{60000}')`,
    `job_claim_one_by_one('ann', 2, '{1}', '{60000}')`,
    'job_promote(10)',
    'job_expire(10)',
    "job_recover(10, '{1}')",
    `job_heartbeat('{ann}', '{${ids}}', '{${ids.replace(/\d+/g, `${fence}`)}}', '{${ids.replace(/\d+/g, '60000')}}')`,
    `job_settle('[${ids.split(',').map((id) => `{"id": ${id}, "fence": ${fence}, "to": "release"}`)}]')`,
    `job_complete('{${ids}}', '{${ids.replace(/\d+/g, `${fence}`)}}', null, '{7}')`,
    `job_complete('{${ids}}', '{${ids.replace(/\d+/g, '7')}}', null, '{7}')`,
    `job_complete_one(${ids.split(',')[0]}, ${fence}, null, 7, 1000)`,
    `job_settle_one('{"id": ${ids.split(',')[0]}, "fence": ${fence}, "to": "release"}', 1000)`,
    `job_record_progress(${ids.split(',')[0]}, ${fence}, '1', 1000, 1000)`,
    `job_release_orphaned('{ann}', '{}')`,
    `job_cancel(${ids.split(',')[0]}, '{}', 1000)`,
    `job_redrive('{${ids}}')`,
    `job_discard('{${ids}}')`,
  ]
  const soFar = async (): Promise<number> =>
    (
      await ask(`select (pg_stat_get_xact_tuples_returned(o) + pg_stat_get_xact_tuples_fetched(o))::int as read
        from (select '{schema}.job'::regclass::oid as o) t`)
    ).read
  /** How many jobs each has read. */
  const reads = async () => {
    const read: Record<string, number> = {}
    for (const statement of statements('1,2', 100)) {
      await client.query('begin')
      const before = await soFar()
      await ask(`select {schema}.${statement}`)
      read[statement] = (await soFar()) - before
      await client.query('rollback')
    }
    return read
  }
  try {
    await put(...[1, 2].map((id) => ({ id, state: 'running' as const })), { id: 3 })
    // To make it later would be a reason to plan anew.
    await rows("select {schema}.job_history_add_partition('2026-01-09')")
    await rows('vacuum analyze {schema}.job')
    await reads()
    await ask(`insert into {schema}.job (created_at, run_at, lane, priority, max_attempts, keep_days, state, input)
      select now(), now(), 3, 0, 10, 7, 'ready', '{}' from generate_series(1, 5000)`)
    const much = Object.entries(await reads()).filter(([, read]) => read > 100)
    expect(much).toEqual([])
  } finally {
    client.release()
  }
})

describe('operators', () => {
  it('cancel: what each state comes to', async () => {
    await put(
      { id: 1 },
      { id: 2, state: 'scheduled' },
      { id: 3, state: 'running' },
      { id: 4, state: 'dead' },
      { id: 5, keepDays: 0 },
    )
    const told: string[] = []
    for (const id of [1, 2, 3, 4, 5, 6]) told.push(await fixture.jobs.cancel(id))
    expect(told).toEqual(['canceled', 'canceled', 'canceling', 'dead', 'canceled', 'ended'])
    expect(await states()).toEqual({ 3: 'running', 4: 'dead' })
    expect(idsOf((await history()) as { id: number }[])).toEqual([1, 2])
    const [first] = await rows('select cancel_at from {schema}.job where id = 3')
    await passes(10)
    await fixture.jobs.cancel(3)
    expect(await rows('select cancel_at from {schema}.job where id = 3')).toEqual([first])
  })

  it('cancel: waits no longer than it was told', async () => {
    await put({ id: 1 })
    const [told] = await whileLocked(row(1), () =>
      rows("select {schema}.job_cancel(1, '{}', 20) ->> 'state' as state"),
    )
    expect(told?.state).toBe('locked')
  })

  it('redrive: what is dead, with all attempts before it, and nothing else; and waits for nobody', async () => {
    await put(
      { id: 1, state: 'dead', attempt: 5, expiresAt: '2025-01-01' },
      { id: 2, state: 'dead', lane: 3 },
      { id: 3, fence: 100 },
      { id: 4, state: 'running' },
    )
    const told = await whileLocked(row(2), () => fixture.jobs.redrive(1, 2, 3, 4, 5))
    expect(told).toEqual({ ids: [1], queues: ['q'] })
    expect(await rowOf('state, attempt, expires_at')).toEqual({
      state: 'ready',
      attempt: 0,
      expires_at: null,
    })
    expect(await fixture.jobs.redrive(1, 2, 3, 4)).toEqual({ ids: [2], queues: ['other'] })
    expect(await rows('select attempt from {schema}.job where id in (3, 4)')).toEqual([
      { attempt: 1 },
      { attempt: 1 },
    ])
  })

  it('discard: what is dead, and nothing else; and waits for nobody', async () => {
    await put({ id: 1, state: 'dead' }, { id: 2, state: 'dead' }, { id: 3 }, { id: 4, state: 'running' })
    expect(await whileLocked(row(2), () => fixture.jobs.discard(1, 2, 3, 4, 5))).toEqual([1])
    expect(await states()).toEqual({ 2: 'dead', 3: 'ready', 4: 'running' })
  })

  it('pause: the first time and who has done it stay', async () => {
    await fixture.jobs.pause('q')
    await passes(10)
    await rows("select {schema}.queue_pause('q', 'bob', 1000)")
    expect(await rows('select paused_by, paused_at from {schema}.queue')).toEqual([
      { paused_by: 'operator', paused_at: new Date('2026-01-01T00:00:00Z') },
    ])
  })

  it('workers: those that nobody has heard of for so long are forgotten, and nobody is waited for', async () => {
    await rows(`insert into {schema}.worker select w, 'host', 1, '{1}', 1, '2025-01-01', s::timestamptz
      from unnest('{old,busy,new}'::text[], '{2025-12-31,2025-12-31,2026-01-01}'::text[]) as t (w, s)`)
    const forget = async () => (await rows('select {schema}.worker_delete_stale(60000) as count'))[0]?.count
    expect(await whileLocked("select from {schema}.worker where id = 'busy'", forget)).toBe(1)
    expect(await rows('select id from {schema}.worker order by id')).toEqual([{ id: 'busy' }, { id: 'new' }])
  })
})
