import type pg from 'pg'
import { describe, expect, expectTypeOf, it } from 'vitest'
import { blocked, kv, OTHER, openKv, pool, schema, versionOf } from '../../../test/kv-fixture.js'
import { movingClock } from '../../../test/moving-clock.js'
import { BusyError, NotInTransactionError } from '../../errors.js'
import { type DibsEvents, onEvent } from '../../postgres/events.js'
import type { Json, Stored } from '../../postgres/json.js'
import { keyOf } from '../../postgres/key.js'
import { countTraffic } from '../../testing/index.js'

openKv()

describe('setIfAbsent', () => {
  it('claims what is not there, and gives the loser what the winner stored', async () => {
    const won = await kv.setIfAbsent('a', { by: 'ann' })
    expect(won).toEqual({ ok: true, version: expect.any(Number) })
    const version = versionOf(won)
    expect(Number.isSafeInteger(version)).toBe(true)
    const lost = await kv.setIfAbsent('a', { by: 'bob' })
    expect(lost).toEqual({ ok: false, current: { value: { by: 'ann' }, version } })
    expect(await kv.get('a')).toEqual({ value: { by: 'ann' }, version })
  })

  it('lets one of many win, and tells all others of it', async () => {
    const claims = await Promise.all(Array.from({ length: 20 }, (_, n) => kv.setIfAbsent('rush', n)))
    const winner = claims.findIndex(({ ok }) => ok)
    const version = versionOf(claims[winner])
    claims.forEach((claim, n) => {
      if (n !== winner) expect(claim).toEqual({ ok: false, current: { value: winner, version } })
    })
  })

  it('tells the loser when the entry of the winner expires', async () => {
    await schema.clock.freeze(new Date(1_000_000))
    await kv.setIfAbsent('a', 1, { ttlMs: 5_000 })
    const lost = await kv.setIfAbsent('a', 2)
    expect(lost).toEqual({ ok: false, current: await kv.get('a') })
    expect(lost).toMatchObject({ current: { expiresAt: new Date(1_005_000) } })
  })

  it('claims what has expired, with a version that is greater', async () => {
    await schema.clock.freeze(new Date('2030-01-01T00:00:00Z'))
    const first = await kv.setIfAbsent('a', 1, { ttlMs: 1_000 })
    await schema.clock.advance(999)
    expect(await kv.setIfAbsent('a', 2, { ttlMs: 1_000 })).toMatchObject({ ok: false, current: { value: 1 } })
    await schema.clock.advance(1)
    const second = await kv.setIfAbsent('a', 2, { ttlMs: 5_000 })
    expect(second.ok).toBe(true)
    expect(versionOf(second)).toBeGreaterThan(versionOf(first))
    expect(await kv.get('a')).toEqual({
      value: 2,
      version: versionOf(second),
      expiresAt: new Date('2030-01-01T00:00:06.000Z'),
    })
  })

  it('gives whoever waited for one that rolled back the whole of its time', async () => {
    const clock = await movingClock(pool, schema.name, new Date(1_000_000))
    const [first, second] = [await pool.connect(), await pool.connect()]
    try {
      await first.query('begin')
      await kv.setIfAbsent('a', 'first', { tx: first })
      await second.query('begin')
      const waiting = kv.setIfAbsent('a', 'second', { tx: second, ttlMs: 1_000 })
      await blocked(second)
      await clock.set(new Date(1_005_000))
      await first.query('rollback')
      const version = versionOf(await waiting)
      await second.query('commit')
      expect(await kv.get('a')).toEqual({ value: 'second', version, expiresAt: new Date(1_006_000) })
      expect(version).toBe(1_005_000_000)
    } finally {
      first.release()
      second.release()
    }
  })

  it.each(['setIfAbsent', 'set'] as const)(
    '%s gives whoever waited for an expired row the whole of its time',
    async (call) => {
      const clock = await movingClock(pool, schema.name, new Date(1_000_000))
      await kv.set('a', 1, { ttlMs: 1_000 })
      await clock.set(new Date(1_001_000))
      const [holder, waiter] = [await pool.connect(), await pool.connect()]
      try {
        await holder.query('begin')
        await holder.query(`select from ${schema.name}.kv for update`)
        await waiter.query('begin')
        const waiting = kv[call]('a', 2, { tx: waiter, ttlMs: 1_000 })
        await blocked(waiter)
        await clock.set(new Date(1_006_000))
        await holder.query('commit')
        const version = versionOf(await waiting)
        await waiter.query('commit')
        expect(await kv.get('a')).toEqual({ value: 2, version, expiresAt: new Date(1_007_000) })
      } finally {
        holder.release()
        waiter.release()
      }
    },
  )

  it('gives up after ten looks at a key that comes and goes', async () => {
    const { name } = schema
    // Nothing is there, and nothing can be put there: as if it were deleted each time before one can look.
    await pool.query(`
      create function ${name}.swallow() returns trigger language plpgsql as 'begin return null; end';
      create trigger swallow before insert on ${name}.kv for each row execute function ${name}.swallow()`)
    try {
      for (const call of [() => kv.setIfAbsent('order:7', 1), () => kv.set('order:7', 1)]) {
        const error = await call().catch((thrown: unknown) => thrown)
        expect(error).toBeInstanceOf(BusyError)
        expect(error).toMatchObject({ subject: 'a turn at the key order:*', retryAfterMs: 100 })
      }
    } finally {
      await pool.query(`drop function ${name}.swallow() cascade`)
    }
  })
})

describe('get and getMany', () => {
  const values: Json[] = [
    null,
    true,
    0,
    -1.5,
    1e21,
    '',
    'ż🦊"\\\n',
    [],
    [1, [null]],
    {},
    { 'a.b': { '': [{}] } },
  ]
  it.each(values.map((value) => [value]))('gives back %j as it was', async (value) => {
    await kv.set('v', value)
    expect((await kv.get('v'))?.value).toEqual(value)
    expect(await kv.setIfAbsent('v', 'other')).toMatchObject({ ok: false, current: { value } })
  })

  it('stores what JSON makes of a value, and says so by its type', async () => {
    const given = { at: new Date(0), absent: undefined }
    const claim = await kv.setIfAbsent('t', given)
    if (!claim.ok) expectTypeOf(claim.current.value.at).toEqualTypeOf<string>()
    expectTypeOf<Stored<Json>>().toEqualTypeOf<Json>()
    expectTypeOf<Stored<{ a: [Date, { b: Date[] }] }>>().toEqualTypeOf<{ a: [string, { b: string[] }] }>()
    expect((await kv.get<{ at: string }>('t'))?.value).toEqual({ at: '1970-01-01T00:00:00.000Z' })
    expectTypeOf(await kv.get('t')).toMatchTypeOf<{ value: Json; version: number } | undefined>()
    // @ts-expect-error: a pool is no transaction
    await expect(kv.get('t', { tx: pool })).rejects.toBeInstanceOf(NotInTransactionError)
  })

  it('finds nothing under a key that is absent or has expired', async () => {
    expect(await kv.get('a')).toBeUndefined()
    await kv.set('a', 1, { ttlMs: 60_000 })
    expect((await kv.get('a'))?.expiresAt).toBeInstanceOf(Date)
    await schema.clock.advance(60_000)
    expect(await kv.get('a')).toBeUndefined()
    expect(await kv.getMany(['a'])).toEqual([undefined])
    expect(await kv.list()).toEqual({ items: [], nextCursor: undefined })
  })

  it('getMany keeps the order, also of keys that are missing or asked for twice', async () => {
    const keys = ['b', 'a', '{"x",\\}', 'NULL', 'ż', '🦊']
    for (const key of keys) await kv.set(key, key)
    const found = await kv.getMany<string>(['🦊', 'none', 'b', ...keys, 'b'])
    expect(found.map((entry) => entry?.value)).toEqual(['🦊', undefined, 'b', ...keys, 'b'])
    expect(await kv.getMany([])).toEqual([])
  })

  it('getMany does not care what becomes of the list', async () => {
    await kv.set('a', 1)
    const keys = ['a', 'b']
    const found = kv.getMany<number>(keys)
    keys.length = 0
    expect((await found).map((entry) => entry?.value)).toEqual([1, undefined])
  })
})

describe('set', () => {
  it('writes over what is there, and takes its expiry away', async () => {
    const first = await kv.set('a', 1, { ttlMs: 1_000 })
    const second = await kv.set('a', 2)
    expect(second.version).toBeGreaterThan(first.version)
    expect(await kv.get('a')).toEqual({ value: 2, version: second.version })
    await kv.set('a', 3, { ttlMs: Number.POSITIVE_INFINITY })
    expect(await kv.get('a')).not.toHaveProperty('expiresAt')
  })

  it('counts on from the version that was, also if the clock was set back', async () => {
    const { version } = await kv.set('a', {}, { ttlMs: 1_000 })
    await schema.clock.freeze(new Date('2020-01-01'))
    expect(await kv.set('a', {})).toEqual({ version: version + 1 })
    expect(await kv.compareAndSet('a', version + 1, {})).toEqual({ ok: true, version: version + 2 })
    expect(await kv.patch('a', {}, { ttlMs: 1_000 })).toEqual({ value: {}, version: version + 3 })
    await schema.clock.advance(1_000)
    expect(await kv.setIfAbsent('a', {})).toEqual({ ok: true, version: version + 4 })
  })

  it('has a version that no key of that name had, after it was deleted', async () => {
    const seen = new Set<number>()
    for (let n = 0; n < 20; n++) {
      seen.add((await kv.set('a', n)).version)
      await kv.delete('a')
    }
    expect(seen.size).toBe(20)
  })

  it('keeps when it was made, unless that had expired', async () => {
    const madeAt = async () => {
      const { rows } = await pool.query(`select created_at from ${schema.name}.kv where key = 'a'`)
      return rows[0].created_at.getTime()
    }
    await schema.clock.freeze(new Date(1_000_000))
    await kv.set('a', 1)
    await schema.clock.advance(1_000)
    await kv.set('a', 1, { ttlMs: 1_000 })
    expect(await madeAt()).toBe(1_000_000)
    await schema.clock.advance(1_000)
    await kv.set('a', 1)
    expect(await madeAt()).toBe(1_002_000)
  })
})

describe('compareAndSet', () => {
  it('writes if the version is the one that was seen, else tells what is there', async () => {
    const { version } = await kv.set('a', { n: 1 })
    const swap = await kv.compareAndSet('a', version, { n: 2 })
    expect(swap).toEqual({ ok: true, version: expect.any(Number) })
    expect(await kv.compareAndSet('a', version, { n: 3 })).toEqual({
      ok: false,
      current: await kv.get('a'),
    })
    expect((await kv.get('a'))?.value).toEqual({ n: 2 })
    expect(await kv.compareAndSet('none', version, 1)).toEqual({ ok: false, current: undefined })
  })

  it('keeps the expiry, moves it, or ends it', async () => {
    await schema.clock.freeze(new Date(1_000_000))
    const { version } = await kv.set('a', 1, { ttlMs: 1_000 })
    await schema.clock.advance(500)
    const kept = await kv.compareAndSet('a', version, 2)
    expect((await kv.get('a'))?.expiresAt).toEqual(new Date(1_001_000))
    expect(await kv.compareAndSet('a', OTHER, 2)).toMatchObject({
      ok: false,
      current: { expiresAt: new Date(1_001_000) },
    })
    const moved = await kv.compareAndSet('a', kept.ok ? kept.version : OTHER, 3, { ttlMs: 1_000 })
    expect((await kv.get('a'))?.expiresAt).toEqual(new Date(1_001_500))
    await kv.compareAndSet('a', moved.ok ? moved.version : OTHER, 4, { ttlMs: Number.POSITIVE_INFINITY })
    expect(await kv.get('a')).toEqual({ value: 4, version: expect.any(Number) })
  })

  it('finds nothing in what has expired', async () => {
    const { version } = await kv.set('a', 1, { ttlMs: 1_000 })
    await schema.clock.advance(1_000)
    expect(await kv.compareAndSet('a', version, 2)).toEqual({ ok: false, current: undefined })
    expect(await kv.delete('a')).toEqual({ ok: false, current: undefined })
    expect(await kv.patch('a', {})).toBeUndefined()
  })

  it.each([
    ['compareAndSet', (tx: pg.PoolClient, version: number) => kv.compareAndSet('a', version, 2, { tx })],
    ['delete', (tx: pg.PoolClient) => kv.delete('a', { tx })],
    ['patch', (tx: pg.PoolClient) => kv.patch('a', { n: 2 }, { tx })],
  ])('%s counts the wait for the lock as time passed', async (_, call) => {
    const clock = await movingClock(pool, schema.name, new Date(1_000_000))
    const { version } = await kv.set('a', { n: 1 }, { ttlMs: 1_000 })
    const [holder, waiter] = [await pool.connect(), await pool.connect()]
    try {
      await holder.query('begin')
      await holder.query(`select from ${schema.name}.kv for update`)
      await waiter.query('begin')
      const waiting = call(waiter, version)
      await blocked(waiter)
      await clock.set(new Date(1_001_000))
      await holder.query('commit')
      const told = await waiting
      await waiter.query('commit')
      expect(told && 'current' in told ? told.current : told).toBeUndefined()
      const { rows } = await pool.query(`select value from ${schema.name}.kv`)
      expect(rows).toEqual([{ value: { n: 1 } }])
    } finally {
      holder.release()
      waiter.release()
    }
  })
})

describe('delete', () => {
  it('deletes what is there, or the one version', async () => {
    const { version } = await kv.set('a', 1)
    const refused = await kv.delete('a', { ifVersion: OTHER })
    expect(refused).toEqual({ ok: false, current: { value: 1, version } })
    expect(await kv.delete('a', { ifVersion: version })).toEqual({ ok: true })
    expect(await kv.get('a')).toBeUndefined()
    expect(await kv.delete('a')).toEqual({ ok: false, current: undefined })
    await kv.set('a', 2)
    expect(await kv.delete('a')).toEqual({ ok: true })
  })
})

it('takes one round trip for each call', async () => {
  await kv.set('a', {})
  const calls = {
    setIfAbsent: () => kv.setIfAbsent('a', 1),
    'setIfAbsent, won': () => kv.setIfAbsent('new', 1),
    get: () => kv.get('a'),
    getMany: () => kv.getMany(['a', 'b']),
    set: () => kv.set('a', {}),
    compareAndSet: () => kv.compareAndSet('a', OTHER, 1),
    patch: () => kv.patch('a', { b: 1 }, { remove: ['c'] }),
    list: () => kv.list({ prefix: 'a' }),
    delete: () => kv.delete('a'),
  }
  for (const [name, call] of Object.entries(calls)) {
    const { roundTrips, commits } = await countTraffic(pool, call as () => Promise<unknown>)
    expect({ roundTrips, commits }, name).toEqual({ roundTrips: 1, commits: 1 })
  }
})

it('tells of conflicts, without the key', async () => {
  const told: DibsEvents['dibs:kv.conflict'][] = []
  const stop = onEvent('dibs:kv.conflict', (event) => void told.push(event))
  const key = keyOf('user', 'ann@example.org')
  await kv.setIfAbsent(key, 1)
  await kv.setIfAbsent(key, 1)
  await kv.compareAndSet(key, OTHER, 1)
  await kv.delete(key, { ifVersion: OTHER })
  await kv.delete(key)
  await kv.delete(key)
  stop()
  expect(told.map(({ call, template }) => [call, template])).toEqual([
    ['setIfAbsent', 'user:*'],
    ['compareAndSet', 'user:*'],
    ['delete', 'user:*'],
  ])
  expect(new Set(told.map(({ keyHash }) => keyHash)).size).toBe(1)
  expect(told[0]).toMatchObject({ schema: schema.name, keyHash: expect.stringMatching(/^[0-9a-f]{16}$/) })
  expect(JSON.stringify(told)).not.toContain('ann')
})
