import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, expectTypeOf, it } from 'vitest'
import { throughPool, url, viaPgBouncer } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import { BusyError, ConflictError, InvalidInputError, NotInTransactionError } from '../errors.js'
import { type DibsEvents, onEvent } from '../postgres/events.js'
import { renderStatement } from '../postgres/statement.js'
import { countTraffic, createTestSchema, type TestSchema, untilBlocked } from '../testing/index.js'
import type { Json, Stored } from './json.js'
import { keyOf } from './key.js'
import type { Kv } from './kv.js'
import { scanRange } from './kv-statements.js'

const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
let schema: TestSchema
let dibs: Dibs
let kv: Kv

beforeAll(async () => {
  schema = await createTestSchema(pool)
  dibs = await Dibs.open({ ...throughPool, pool, schema: schema.name })
  kv = dibs.kv
})
afterEach(async () => {
  await schema.clock.reset()
  await pool.query(`delete from ${schema.name}.kv`)
})
afterAll(async () => {
  await dibs.close()
  await schema.drop()
  await pool.end()
})

/** A version that no key has had. */
const OTHER = 7

describe('setIfAbsent', () => {
  it('claims what is not there, and gives the loser what the winner stored', async () => {
    const won = await kv.setIfAbsent('a', { by: 'ann' })
    expect(won).toEqual({ claimed: true, version: expect.any(Number) })
    expect(Number.isSafeInteger(won.version)).toBe(true)
    const lost = await kv.setIfAbsent('a', { by: 'bob' })
    expect(lost).toEqual({ claimed: false, value: { by: 'ann' }, version: won.version })
    expect(await kv.get('a')).toEqual({ value: { by: 'ann' }, version: won.version })
  })

  it('lets one of many win, and tells all others of it', async () => {
    const claims = await Promise.all(Array.from({ length: 20 }, (_, n) => kv.setIfAbsent('rush', n)))
    const winner = claims.findIndex(({ claimed }) => claimed)
    const { version } = claims[winner] ?? {}
    claims.forEach((claim, n) => {
      if (n !== winner) expect(claim).toEqual({ claimed: false, value: winner, version })
    })
  })

  it('claims what has expired, with a version that is greater', async () => {
    await schema.clock.freeze(new Date('2030-01-01T00:00:00Z'))
    const first = await kv.setIfAbsent('a', 1, { ttlMs: 1_000 })
    await schema.clock.advance(999)
    expect(await kv.setIfAbsent('a', 2, { ttlMs: 1_000 })).toMatchObject({ claimed: false, value: 1 })
    await schema.clock.advance(1)
    const second = await kv.setIfAbsent('a', 2, { ttlMs: 5_000 })
    expect(second.claimed).toBe(true)
    expect(second.version).toBeGreaterThan(first.version)
    expect(await kv.get('a')).toEqual({
      value: 2,
      version: second.version,
      expiresAt: new Date('2030-01-01T00:00:06.000Z'),
    })
  })

  it('gives whoever waited for one that rolled back the whole of its time', async () => {
    await schema.clock.freeze(new Date('2030-01-01T00:00:00Z'))
    const [first, second] = [await pool.connect(), await pool.connect()]
    try {
      await first.query('begin')
      await kv.setIfAbsent('a', 'first', { tx: first })
      await second.query('begin')
      const waiting = kv.setIfAbsent('a', 'second', { tx: second, ttlMs: 1_000 })
      await blocked(second)
      await schema.clock.advance(5_000)
      await first.query('rollback')
      const { version } = await waiting
      await second.query('commit')
      const expiresAt = new Date('2030-01-01T00:00:06.000Z')
      expect(await kv.get('a')).toEqual({ value: 'second', version, expiresAt })
      expect(version).toBe(Date.parse('2030-01-01T00:00:05.000Z') * 1_000)
    } finally {
      first.release()
      second.release()
    }
  })

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

/** Through PgBouncer a client does not know its backend. */
async function blocked(client: pg.PoolClient): Promise<void> {
  if (!viaPgBouncer) return void (await untilBlocked(client))
  const waits = `select from pg_catalog.pg_stat_activity
    where wait_event_type = 'Lock' and state = 'active' and query like '%${schema.name}%'`
  await expect.poll(async () => (await pool.query(waits)).rowCount).toBe(1)
}

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
    expect(await kv.setIfAbsent('v', 'other')).toMatchObject({ claimed: false, value })
  })

  it('stores what JSON makes of a value, and says so by its type', async () => {
    const given = { at: new Date(0), absent: undefined }
    const claim = await kv.setIfAbsent('t', given)
    if (!claim.claimed) expectTypeOf(claim.value.at).toEqualTypeOf<string>()
    expectTypeOf<Stored<{ a: [Date, { b: Date[] }] }>>().toEqualTypeOf<{ a: [string, { b: string[] }] }>()
    expect((await kv.get<{ at: string }>('t'))?.value).toEqual({ at: '1970-01-01T00:00:00.000Z' })
    expectTypeOf(await kv.get('t')).toMatchTypeOf<{ value: Json; version: number } | undefined>()
    // @ts-expect-error: a pool is no transaction
    await expect(kv.get('t', { tx: pool })).rejects.toBeInstanceOf(NotInTransactionError)
  })

  it('finds nothing under a key that is absent or has expired', async () => {
    expect(await kv.get('a')).toBeUndefined()
    await kv.set('a', 1, { ttlMs: 1_000 })
    expect((await kv.get('a'))?.expiresAt).toBeInstanceOf(Date)
    await schema.clock.advance(1_000)
    expect(await kv.get('a')).toBeUndefined()
    expect(await kv.getMany(['a'])).toEqual([undefined])
    expect(await kv.scan('')).toEqual({ entries: [] })
  })

  it('getMany keeps the order, also of keys that are missing or asked for twice', async () => {
    const keys = ['b', 'a', '{"x",\\}', 'NULL', 'ż', '🦊']
    for (const key of keys) await kv.set(key, key)
    const found = await kv.getMany<string>(['🦊', 'none', 'b', ...keys, 'b'])
    expect(found.map((entry) => entry?.value)).toEqual(['🦊', undefined, 'b', ...keys, 'b'])
    expect(await kv.getMany([])).toEqual([])
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
    expect(await kv.setIfAbsent('a', {})).toEqual({ claimed: true, version: version + 4 })
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
    expect(await kv.delete('a')).toEqual({ deleted: false, current: undefined })
    expect(await kv.patch('a', {})).toBeUndefined()
  })

  it.each([
    ['compareAndSet', (tx: pg.PoolClient, version: number) => kv.compareAndSet('a', version, 2, { tx })],
    ['delete', (tx: pg.PoolClient) => kv.delete('a', { tx })],
    ['patch', (tx: pg.PoolClient) => kv.patch('a', { n: 2 }, { tx })],
  ])('%s counts the wait for the lock as time passed', async (_, call) => {
    await schema.clock.freeze(new Date(1_000_000))
    const { version } = await kv.set('a', { n: 1 }, { ttlMs: 1_000 })
    const [holder, waiter] = [await pool.connect(), await pool.connect()]
    try {
      await holder.query('begin')
      await holder.query(`select from ${schema.name}.kv for update`)
      await waiter.query('begin')
      const waiting = call(waiter, version)
      await blocked(waiter)
      await schema.clock.advance(1_000)
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
    expect(refused).toEqual({ deleted: false, current: { value: 1, version } })
    expect(await kv.delete('a', { ifVersion: version })).toEqual({ deleted: true })
    expect(await kv.get('a')).toBeUndefined()
    expect(await kv.delete('a')).toEqual({ deleted: false, current: undefined })
    await kv.set('a', 2)
    expect(await kv.delete('a')).toEqual({ deleted: true })
  })
})

describe('patch', () => {
  it.each([
    [{ a: 1 }, { b: 2 }, { a: 1, b: 2 }],
    [{ a: { x: 1, y: { z: 1 } } }, { a: { y: { w: 2 } } }, { a: { x: 1, y: { z: 1, w: 2 } } }],
    [{ a: { x: 1 } }, { a: {} }, { a: { x: 1 } }],
    [{ a: { x: 1 } }, { a: null }, { a: null }],
    [{ a: { x: 1 } }, { a: [1] }, { a: [1] }],
    [{ a: [1, 2] }, { a: [3] }, { a: [3] }],
    [{ a: null }, { a: { x: 1 } }, { a: { x: 1 } }],
    [{ a: 'text' }, { a: { b: { c: 1 } } }, { a: { b: { c: 1 } } }],
    [{ '': { '"': 1 } }, { '': { $: 2 } }, { '': { '"': 1, $: 2 } }],
    [{ a: 1 }, {}, { a: 1 }],
    [{}, { a: undefined, b: { c: undefined } }, { b: {} }],
  ])('%j with %j is %j', async (before, fields, after) => {
    const { version } = await kv.set('p', before)
    const patched = await kv.patch('p', fields)
    expect(patched).toEqual({ value: after, version: expect.any(Number) })
    expect(patched?.version).toBeGreaterThan(version)
    expect(await kv.get('p')).toEqual(patched)
  })

  it.each([
    [['a'], { b: { c: [{ d: 1 }], e: 2 } }],
    [[['b', 'e']], { a: 1, b: { c: [{ d: 1 }] } }],
    [['a', ['b']], {}],
    [['none', ['b', 'none'], ['a', 'x'], ['none', 'x']], { a: 1, b: { c: [{ d: 1 }], e: 2 } }],
    // An element of an array is no field.
    [[['b', 'c', '0']], { a: 1, b: { c: [{ d: 1 }], e: 2 } }],
    [[['b', 'c', '0', 'd']], { a: 1, b: { c: [{}], e: 2 } }],
  ])('removes %j', async (remove, after) => {
    await kv.set('p', { a: 1, b: { c: [{ d: 1 }], e: 2 } })
    expect((await kv.patch('p', {}, { remove }))?.value).toEqual(after)
  })

  it('replaces whole what it removes and sets', async () => {
    await kv.set('p', { a: { x: 1 } })
    expect((await kv.patch('p', { a: { y: 2 } }, { remove: ['a'] }))?.value).toEqual({ a: { y: 2 } })
  })

  it('keeps the expiry, or moves it', async () => {
    await schema.clock.freeze(new Date(1_000_000))
    await kv.set('p', {}, { ttlMs: 1_000 })
    await kv.patch('p', { a: 1 })
    expect((await kv.get('p'))?.expiresAt).toEqual(new Date(1_001_000))
    await kv.patch('p', { a: 1 }, { ttlMs: 5_000 })
    expect((await kv.get('p'))?.expiresAt).toEqual(new Date(1_005_000))
  })

  it('says what is there if that is no object, and nothing if there is nothing', async () => {
    expect(await kv.patch('none', { a: 1 })).toBeUndefined()
    for (const [value, said] of [
      [[1], 'a JSON array'],
      ['text', 'a JSON string'],
      [null, 'null'],
    ] as const) {
      await kv.set('p', value)
      const error = await kv.patch('p', { a: 1 }).catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(InvalidInputError)
      expect(error).toMatchObject({
        field: 'key',
        message: expect.stringContaining(`what is there is ${said};`),
      })
    }
  })

  it('does not let a value grow without end, patch by patch', async () => {
    await kv.set('p', {})
    const half = 'x'.repeat(600_000)
    await kv.patch('p', { a: half })
    await expect(kv.patch('p', { b: half })).rejects.toThrow('larger than 1048576 bytes')
    expect((await kv.get<object>('p'))?.value).toEqual({ a: half })
  })

  it('takes as many fields as there is room for', async () => {
    const fields = Object.fromEntries(Array.from({ length: 90_000 }, (_, n) => [n.toString(36), n]))
    await kv.set('p', { 0: -1, a: { b: 1 } })
    expect((await kv.patch('p', fields))?.value).toEqual(fields)
  })

  it('goes as deep as it says', async () => {
    const nest = (levels: number, leaf: object): object =>
      levels === 1 ? leaf : { inner: nest(levels - 1, leaf) }
    await kv.set('p', nest(50, { a: 1 }))
    expect((await kv.patch('p', nest(50, { b: 2 })))?.value).toEqual(nest(50, { a: 1, b: 2 }))
    await expect(kv.patch('p', nest(51, { b: 2 }))).rejects.toThrow('deeper than 50 levels')
  })
})

describe('scan', () => {
  const keysOf = async (prefix: string, limit = 3): Promise<string[]> => {
    const keys: string[] = []
    let after: string | undefined
    do {
      const page = await kv.scan(prefix, { after, limit })
      expect(page.entries.length).toBeLessThanOrEqual(limit)
      keys.push(...page.entries.map(({ key }) => key))
      after = page.next
    } while (after !== undefined)
    return keys
  }

  it('reads page by page, in the order of bytes, what begins with a prefix and nothing else', async () => {
    const keys = [
      ...['a', 'a%b', 'a%c', 'a_b', 'ab', 'aB', 'a:1', 'a:10', 'a:2', 'b', 'B', 'ä', 'z', 'ź'],
      // Around the gap of surrogates, and beyond it, where UTF-16 sorts in another order.
      ...[
        'a\ud7ff',
        'a\ud7ffx',
        'a\ue000',
        'a\uffff',
        'a\u{10000}',
        'a\u{10ffff}',
        'a\u{10ffff}x',
        '\u{10ffff}',
      ],
      '\u{10ffff}\u{10ffff}',
    ]
    for (const key of keys) await kv.set(key, key)
    const sorted = keys.toSorted((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
    expect(await keysOf('')).toEqual(sorted)
    for (const prefix of [...keys, 'A', 'a%', 'a_', 'a:', 'none', '\uffff']) {
      expect(await keysOf(prefix)).toEqual(sorted.filter((key) => key.startsWith(prefix)))
    }
  })

  it('says whether there are more, exactly', async () => {
    for (const key of ['k1', 'k2', 'k3', 'k4']) await kv.set(key, 1, { ttlMs: 1_000_000 })
    expect(await kv.scan('k', { limit: 4 })).not.toHaveProperty('next')
    const { entries, next } = await kv.scan<number>('k', { limit: 3 })
    expect(next).toBe('k3')
    expect(entries[0]).toEqual({
      key: 'k1',
      value: 1,
      version: expect.any(Number),
      expiresAt: expect.any(Date),
    })
    expect((await kv.scan('k', { after: 'k3' })).entries.map(({ key }) => key)).toEqual(['k4'])
    expect((await kv.scan('k', { after: 'a' })).entries).toHaveLength(4)
  })

  it('reads a range of the primary key', async () => {
    const table = `${schema.name}.kv`
    await pool.query(`insert into ${table} select 'key:' || n, '1', 1, null, now(), now()
      from generate_series(1, 10000) n; analyze ${table}`)
    const { text } = renderStatement(scanRange, schema.name)
    const client = await pool.connect()
    try {
      // As the server plans it for values that it does not know, which is what a kept plan comes to.
      await client.query('begin; set local plan_cache_mode = force_generic_plan')
      await client.query(`prepare scan_range as ${text}`)
      const plan = await client.query(
        `explain (format json) execute scan_range('key:99', '', '101', 'key:9:')`,
      )
      const said = JSON.stringify(plan.rows)
      expect(said).toContain('"Index Name":"kv_pkey"')
      expect(said).toMatch(/"Index Cond":"[^"]*>=[^"]*>[^"]*< \$4/)
      expect(said).not.toMatch(/Seq Scan|Sort/)
    } finally {
      await client.query('rollback; deallocate scan_range')
      client.release()
    }
    expect(await keysOf('key:99', 1_000)).toHaveLength(111)
  })
})

describe('in the transaction of the caller', () => {
  it('lives and dies with it', async () => {
    await kv.set('kept', 1)
    const failed = dibs.transaction(async (tx) => {
      await kv.set('a', 1, { tx })
      await kv.set('kept', 2, { tx })
      await kv.setIfAbsent('b', 1, { tx })
      expect((await kv.getMany(['a', 'b'], { tx })).map((entry) => entry?.value)).toEqual([1, 1])
      expect((await kv.scan('', { tx })).entries).toHaveLength(3)
      expect(await kv.get('a')).toBeUndefined()
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect((await kv.scan('')).entries).toMatchObject([{ key: 'kept', value: 1 }])
    await dibs.transaction(async (tx) => {
      const { version } = await kv.set('a', { n: 1 }, { tx })
      await kv.compareAndSet('a', version, { n: 2 }, { tx })
      await kv.patch('a', { m: 3 }, { tx })
      await kv.delete('kept', { tx })
    })
    expect((await kv.scan('')).entries).toMatchObject([{ key: 'a', value: { n: 2, m: 3 } }])
  })

  it('can be used further after a claim that was lost', async () => {
    await kv.set('a', 1)
    await dibs.transaction(async (tx) => {
      expect((await kv.setIfAbsent('a', 2, { tx })).claimed).toBe(false)
      await kv.set('b', 2, { tx })
    })
    expect((await kv.get('b'))?.value).toBe(2)
  })

  it.each(['repeatable read', 'serializable'] as const)(
    'at %s, what was written since is a conflict, and run again',
    async (isolation) => {
      const calls = {
        setIfAbsent: (tx: pg.PoolClient) => kv.setIfAbsent('a', 2, { tx }),
        set: (tx: pg.PoolClient) => kv.set('a', 2, { tx }),
        compareAndSet: (tx: pg.PoolClient) => kv.compareAndSet('a', OTHER, 2, { tx }),
        delete: (tx: pg.PoolClient) => kv.delete('a', { tx }),
        patch: (tx: pg.PoolClient) => kv.patch('a', {}, { tx }),
      }
      for (const [name, call] of Object.entries(calls)) {
        if (name !== 'setIfAbsent') await kv.set('a', {})
        const client = await pool.connect()
        await client.query(`begin isolation level ${isolation}; select 1`)
        await kv.set('a', { by: 'another' })
        const error = await call(client).catch((thrown: unknown) => thrown)
        await client.query('rollback')
        client.release()
        expect(error, name).toBeInstanceOf(ConflictError)
        expect(error, name).toMatchObject({ sqlState: '40001' })
      }
      let attempts = 0
      const claim = await dibs.transaction(
        async (tx) => {
          attempts = tx.attempt
          await tx.query('select 1')
          if (tx.attempt === 1) await kv.set('b', 'theirs')
          return kv.setIfAbsent('b', 'ours', { tx })
        },
        { isolation },
      )
      expect(attempts).toBe(2)
      expect(claim).toMatchObject({ claimed: false, value: 'theirs' })
    },
  )

  it.each(['repeatable read', 'serializable'] as const)(
    'at %s, a key is not claimed that the transaction still sees',
    async (isolation) => {
      for (const call of [kv.setIfAbsent.bind(kv), kv.set.bind(kv)]) {
        await kv.set('a', 'old')
        const seen: unknown[] = []
        await dibs.transaction(
          async (tx) => {
            seen.push((await kv.get('a', { tx }))?.value)
            if (tx.attempt === 1) await kv.delete('a')
            await call('a', 'new', { tx })
          },
          { isolation },
        )
        expect(seen).toEqual(['old', undefined])
        expect((await kv.get('a'))?.value).toBe('new')
      }
    },
  )
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
    scan: () => kv.scan('a'),
    delete: () => kv.delete('a'),
  }
  for (const [name, call] of Object.entries(calls)) {
    const { roundTrips, commits } = await countTraffic(pool, call as () => Promise<unknown>)
    expect({ roundTrips, commits }, name).toEqual({ roundTrips: 1, commits: 1 })
  }
})

describe('what is refused before anything is sent', () => {
  const circular: Record<string, unknown> = {}
  circular.self = circular
  const cases: [string, (any: never) => Promise<unknown>, unknown[], string][] = [
    ['a key to get', (key) => kv.get(key), ['', 5, null, undefined, 'a\0', '\ud800', 'ż'.repeat(257)], 'key'],
    ['a key to set', (key) => kv.set(key, 1), ['', 'x'.repeat(513)], 'key'],
    ['a key to setIfAbsent', (key) => kv.setIfAbsent(key, 1), ['', ['a']], 'key'],
    ['a key to compareAndSet', (key) => kv.compareAndSet(key, 1, 1), [''], 'key'],
    ['a key to delete', (key) => kv.delete(key), [''], 'key'],
    ['a key to patch', (key) => kv.patch(key, {}), [''], 'key'],
    ['keys', (keys) => kv.getMany(keys), ['a', undefined, Array(1_001).fill('a')], 'keys'],
    ['one of many keys', (keys) => kv.getMany(keys), [['a', '']], 'keys[1]'],
    ...(['set', 'setIfAbsent'] as const).map(
      (call): [string, (any: never) => Promise<unknown>, unknown[], string] => [
        `a value to ${call}`,
        (value) => kv[call]('a', value),
        [
          ...[undefined, () => 1, 1n, Number.NaN, Number.POSITIVE_INFINITY, Symbol('s'), circular],
          ...[new Map(), { a: new Set() }, [undefined], 'a\0', { a: '\udfff' }, { '\0': 1 }],
          'x'.repeat(1_048_576),
        ],
        'value',
      ],
    ),
    ['a value to compareAndSet', (value) => kv.compareAndSet('a', 1, value), [undefined, 1n], 'value'],
    ['fields', (f) => kv.patch('a', f), [null, 1, 'a', [], undefined, new Map()], 'fields'],
    ['remove', (remove) => kv.patch('a', {}, { remove }), ['a', [1], [[]], [['a', 1]], ['\0']], 'remove'],
    ['too many to remove', (remove) => kv.patch('a', {}, { remove }), [Array(1_001).fill('a')], 'remove'],
    ...(['set', 'setIfAbsent', 'patch'] as const).map(
      (call): [string, (any: never) => Promise<unknown>, unknown[], string] => [
        `a time to live of ${call}`,
        (ttlMs) => kv[call]('a', {}, { ttlMs }),
        [0, -1, 1.5, Number.NaN, '5', null, 1e15, Number.NEGATIVE_INFINITY],
        'ttlMs',
      ],
    ),
    ['a time to live of compareAndSet', (ttlMs) => kv.compareAndSet('a', 1, 1, { ttlMs }), [0], 'ttlMs'],
    [
      'a version',
      (v) => kv.compareAndSet('a', v, 1),
      [0, -1, 1.5, Number.NaN, 2 ** 53, '1', null],
      'version',
    ],
    ['a version to delete', (v) => kv.delete('a', { ifVersion: v }), [0, '1', null], 'ifVersion'],
    ['a prefix', (prefix) => kv.scan(prefix), [undefined, 5, 'a\0', '\ud800', 'x'.repeat(513)], 'prefix'],
    ['a limit', (limit) => kv.scan('', { limit }), [0, -1, 1.5, 1_001, '5', null, Number.NaN], 'limit'],
    ['after', (after) => kv.scan('', { after }), ['', 5, null], 'after'],
    ['options', (options) => kv.get('a', options), [null, 5, 'tx', []], 'options'],
  ]
  it.each(cases)('%s', async (_, call, given, field) => {
    const { roundTrips } = await countTraffic(pool, async () => {
      for (const value of given) {
        const error = await call(value as never).catch((thrown: unknown) => thrown)
        expect(error).toBeInstanceOf(InvalidInputError)
        expect(error).toMatchObject({ field })
      }
    })
    expect(roundTrips).toBe(0)
  })

  it('an option that is misspelled, of every call', async () => {
    const wrong = { ttl: 5 } as never
    const { roundTrips } = await countTraffic(pool, async () => {
      for (const call of [
        () => kv.setIfAbsent('a', 1, wrong),
        () => kv.get('a', wrong),
        () => kv.getMany(['a'], wrong),
        () => kv.set('a', 1, wrong),
        () => kv.compareAndSet('a', 1, 1, wrong),
        () => kv.delete('a', wrong),
        () => kv.patch('a', {}, wrong),
        () => kv.scan('a', wrong),
      ])
        await expect(call()).rejects.toMatchObject({ field: 'ttl', name: 'InvalidInputError' })
    })
    expect(roundTrips).toBe(0)
  })
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

describe('the table', () => {
  it.each([
    ["('', '1', 1, null, now(), now())", 'kv_key_length'],
    ["(repeat('x', 513), '1', 1, null, now(), now())", 'kv_key_length'],
    ["('a', '1', 0, null, now(), now())", 'kv_version_is_safe'],
    ["('a', '1', 9007199254740992, null, now(), now())", 'kv_version_is_safe'],
    ["('a', '1', 1, now(), now(), now())", 'kv_expires_later'],
    ["('a', '1', 1, 'infinity', now(), now())", 'kv_expires_later'],
  ])('refuses %s', async (row, constraint) => {
    await expect(pool.query(`insert into ${schema.name}.kv values ${row}`)).rejects.toMatchObject({
      constraint,
    })
  })

  it('loses what has expired to maintenance, so many at a time, and nothing else', async () => {
    for (const n of [1, 2, 3, 4, 5]) await kv.set(`old:${n}`, n, { ttlMs: n * 1_000 })
    await kv.set('young', 1, { ttlMs: 1_000_000 })
    await kv.set('for ever', 1)
    await schema.clock.advance(500_000)
    const forget = async (batch: number) =>
      Number((await pool.query(`select ${schema.name}.kv_forget_expired(${batch}) as n`)).rows[0].n)
    const client = await pool.connect()
    try {
      // What somebody has locked is not waited for.
      await client.query(`begin; select from ${schema.name}.kv where key = 'old:1' for update`)
      await pool.query(`alter function ${schema.name}.kv_forget_expired set lock_timeout = 1`)
      expect(await forget(0)).toBe(0)
      expect(await forget(1)).toBe(1)
    } finally {
      await client.query('rollback')
      client.release()
    }
    expect(await forget(1)).toBe(1)
    const { rows } = await pool.query(`select key from ${schema.name}.kv order by key`)
    expect(rows.map(({ key }) => key)).toEqual(['for ever', 'old:3', 'old:4', 'old:5', 'young'])
    expect(await forget(100)).toBe(3)
    expect(await forget(100)).toBe(0)
    expect((await kv.scan('')).entries.map(({ key }) => key)).toEqual(['for ever', 'young'])
  })
})
