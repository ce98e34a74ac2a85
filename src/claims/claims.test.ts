import { hostname } from 'node:os'
import { describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { deferred } from '../../test/deferred.js'
import { BusyError, FenceLostError, InProgressError, InvalidInputError } from '../errors.js'
import { encodeCursor } from '../postgres/page.js'

const fixture = openClaims()

describe('dibs.claims', () => {
  it('shows a claim with everything an operator needs', async () => {
    const before = await fixture.dibs.now()
    await fixture.dibs.once({ scope: ['orders', 'a:b'], key: 'k', keepMs: 60_000 }, async () => ({ id: 1 }))
    const claim = await fixture.dibs.claims.get({ scope: ['orders', 'a:b'], key: 'k' })
    expect(claim).toEqual({
      scope: 'orders:a%3Ab',
      key: 'k',
      id: expect.any(String),
      status: 'active',
      attempt: 1,
      lost: 0,
      fence: expect.any(Number),
      holder: expect.stringMatching(/^tx:\d+$/),
      outcome: { id: 1 },
      steps: [],
      createdAt: expect.any(Date),
      completedAt: expect.any(Date),
      expiresAt: expect.any(Date),
    })
    expect(claim?.createdAt.getTime()).toBeGreaterThanOrEqual(before.getTime() - 1)
    expect((claim?.expiresAt?.getTime() ?? 0) - (claim?.createdAt.getTime() ?? 0)).toBe(60_000)
    expect(Number.isSafeInteger(claim?.fence)).toBe(true)
  })

  it('lists page by page, in order, and by what is asked for', async () => {
    const { dibs } = fixture
    for (const key of ['c', 'a', 'b']) await dibs.once({ scope: 's', key }, async () => key)
    await dibs
      .once({ scope: 'r', key: 'z', mode: 'leased' }, () => Promise.reject(new Error('released')))
      .catch(() => {})
    const first = await dibs.claims.list({}, { limit: 2 })
    expect(first.items.map(({ scope, key }) => scope + key)).toEqual(['rz', 'sa'])
    const second = await dibs.claims.list({}, { limit: 2, cursor: first.nextCursor })
    expect(second.items.map(({ scope, key }) => scope + key)).toEqual(['sb', 'sc'])
    expect(second.nextCursor).toBeUndefined()
    const keys = async (...given: Parameters<typeof dibs.claims.list>) =>
      (await dibs.claims.list(...given)).items.map(({ key }) => key)
    expect(await keys({ scope: 's' })).toEqual(['a', 'b', 'c'])
    await dibs.once({ scope: ['s', 'tenant'], key: 'd' }, async () => 1)
    await dibs.once({ scope: 's2', key: 'e' }, async () => 1)
    expect(await keys({ scope: 's' })).toEqual(['a', 'b', 'c', 'd'])
    expect(await keys({ gaveUp: true })).toEqual([])
    expect(await keys({ scope: ['s'] }, { cursor: encodeCursor('claims', ['s', 'b']) })).toEqual(['c', 'd'])
    expect(await keys({ status: 'pending' })).toEqual(['z'])
    expect(await keys({ held: 'released' })).toEqual(['z'])
    expect(await keys({ held: 'abandoned' })).toEqual([])
    expect(await keys({ operation: 'charge' })).toEqual([])
  })

  it('names the holder of a leased claim by host and process, without the id of the call', async () => {
    const { dibs } = fixture
    const at = { scope: 's', key: 'k' }
    const seen = deferred()
    const goOn = deferred()
    const held = dibs.once({ ...at, mode: 'leased', leaseMs: 3_600_000 }, async () => {
      seen.resolve()
      await goOn.promise
    })
    await seen.promise
    const claim = await dibs.claims.get(at)
    expect(claim?.holder).toBe(`${hostname()}:${process.pid}`)
    const refused = await dibs.once({ ...at, mode: 'leased' }, async () => 2).catch((error) => error)
    expect(refused).toBeInstanceOf(InProgressError)
    expect(refused).toMatchObject({ holder: claim?.holder, leaseUntil: claim?.leaseUntil })
    expect(refused.message).toContain(
      `"${claim?.holder}" (lease until ${claim?.leaseUntil?.toISOString()}, unless renewed) works on key "k"`,
    )
    const busy = await dibs.once({ ...at, mode: 'leased', waitMs: 20 }, async () => 2).catch((error) => error)
    expect(busy).toBeInstanceOf(BusyError)
    expect(busy).toMatchObject({ holder: claim?.holder, leaseUntil: claim?.leaseUntil })
    expect(await dibs.tryOnce({ ...at, mode: 'leased' }, async () => 2)).toEqual({
      ...{ ok: false, id: claim?.id, holder: claim?.holder, leaseUntil: claim?.leaseUntil },
      retryAfterMs: expect.any(Number),
    })
    await expect(dibs.claims.forget(at)).rejects.toMatchObject({ holder: claim?.holder })
    goOn.resolve()
    await held
  })

  it.each(['get', 'forget'] as const)('refuses two ways to say which claim: %s', async (call) => {
    const { dibs } = fixture
    await dibs.once({ scope: 's', key: 'k' }, async () => 1)
    const two = { scope: 's', operation: 'charge', key: 'k' } as never
    await expect(dibs.claims[call](two)).rejects.toThrow(
      '`operation` must not be given with `scope`: give one of them',
    )
    expect(await dibs.claims.get({ scope: 's', key: 'k' })).toBeDefined()
  })

  it('takes the records of list as addresses', async () => {
    const { dibs } = fixture
    await dibs.once({ scope: ['s', 'a:b'], key: 'k' }, async () => 1)
    await dibs.singleton({ scope: ['report', 'a:b'], per: 'day' }, async () => 2)
    await dibs.operation('charge', async (_: object) => 3).run({}, { key: 'k' })
    const { items } = await dibs.claims.list()
    expect(items).toHaveLength(3)
    for (const record of items) {
      expect(await dibs.claims.get(record)).toEqual(record)
      expect(await dibs.claims.forget(record)).toEqual({ ok: true })
    }
    expect((await dibs.claims.list()).items).toEqual([])
  })

  it('does not show what is expired', async () => {
    await fixture.dibs.once({ scope: 's', key: 'k', keepMs: 1_000 }, async () => 1)
    await fixture.schema.clock.advance(1_000)
    expect(await fixture.dibs.claims.get({ scope: 's', key: 'k' })).toBeUndefined()
    expect((await fixture.dibs.claims.list()).items).toEqual([])
  })

  it('forgets one, so that its key is new', async () => {
    const at = { scope: 's', key: 'k' }
    await fixture.dibs.once(at, async () => 1)
    expect(await fixture.dibs.claims.forget(at)).toEqual({ ok: true })
    expect(await fixture.dibs.claims.forget(at)).toEqual({ ok: false })
    expect(await fixture.dibs.once(at, async () => 2)).toBe(2)
  })

  it('forgets one that is held only by force, and its holder finds out', async () => {
    const at = { scope: 's', key: 'k' }
    const began = deferred()
    const goOn = deferred()
    const held = fixture.dibs.once({ ...at, mode: 'leased' }, async () => {
      began.resolve()
      await goOn.promise
    })
    await began.promise
    const early = fixture.dibs.claims.forget(at)
    await expect(early).rejects.toThrow(InProgressError)
    await expect(early).rejects.toThrow(
      /so nothing was changed\. Call again in \d+ ms, or pass force: true\.$/,
    )
    expect(await fixture.dibs.claims.forget(at, { force: true })).toEqual({ ok: true })
    goOn.resolve()
    await expect(held).rejects.toThrow(FenceLostError)
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
  })

  it('does not wait for ever for a transaction that works on it', async () => {
    const { pool, schema, dibs } = fixture
    const at = { scope: 's', key: 'k' }
    await dibs.once(at, async () => 1)
    await schema.waits.atOnce()
    const client = await pool.connect()
    await client.query('begin')
    await client.query(`select 1 from ${schema.name}.claim for update`)
    await expect(dibs.claims.forget(at)).rejects.toThrow(BusyError)
    await client.query('rollback')
    client.release()
    await expect(dibs.claims.forget(at, { forced: true } as never)).rejects.toThrow('Unknown option "forced"')
  })

  it.each([
    [{ status: 'done' }, '`status`'],
    [{ held: true }, '`held`'],
    [{}, '`limit`', { limit: 0 }],
    [{}, '`limit`', { limit: 1_001 }],
    [{}, '`cursor`', { cursor: 'x' }],
    [{ scope: 'a', operation: 'b' }, '`operation`'],
    [{ state: 'failed' }, 'Unknown option "state"'],
    [{}, 'Unknown option "after"', { after: 'x' }],
  ])('refuses %j: %s', async (filter, message, page?: object) => {
    const listed = fixture.dibs.claims.list(filter as never, (page ?? {}) as never)
    await expect(listed).rejects.toThrow(InvalidInputError)
    await expect(listed).rejects.toThrow(message)
  })
})

describe('maintenance', () => {
  it('removes what is expired, in batches, and nothing else', async () => {
    const { pool, schema, dibs } = fixture
    await pool.query(`
      insert into ${schema.name}.claim (scope, key, id, holder, status, fence, created_at, completed_at, lease_until, expires_at)
      select 's', n::text, n::text, 'h', case when n <= 2500 then 'active' else 'pending' end::${schema.name}.claim_status, n,
        now(), case when n <= 2500 then now() end,
        case when n > 2550 then '-infinity' when n > 2500 then now() end::timestamptz,
        case when n between 2501 and 2550 then null when n % 2 = 0 then now() - interval '1 second' else now() + interval '1 hour' end
      from generate_series(1, 2600) n`)
    expect(await dibs.maintain({ once: true })).toMatchObject({ claimsForgotten: 1250 + 25 })
    const { rows } = await pool.query(`select count(*)::int as n from ${schema.name}.claim`)
    expect(rows[0].n).toBe(1250 + 50 + 25)
    expect(await dibs.maintain({ once: true })).toMatchObject({ claimsForgotten: 0 })
  })

  it('skips what is being claimed anew', async () => {
    const { dibs, schema } = fixture
    const at = { scope: 's', key: 'k', keepMs: 60_000 }
    await dibs.once(at, async () => 1)
    await schema.clock.advance(60_000)
    const again = await dibs.once(at, async () => {
      const { claimsForgotten } = await dibs.maintain({ once: true })
      return claimsForgotten
    })
    expect(again).toBe(0)
    expect(await dibs.claims.get(at)).toMatchObject({ outcome: 0 })
  })
})
