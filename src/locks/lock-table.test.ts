import { describe, expect, it } from 'vitest'
import { acquirersOf, HOUR_MS } from '../../test/claims/acquirers.js'
import { callersOf } from '../../test/claims/callers.js'
import { openClaims } from '../../test/claims/open-claims.js'
import { until } from '../../test/database.js'
import { movingClock } from '../../test/moving-clock.js'
import type { Executor } from '../postgres/executor.js'

const fixture = openClaims()
const { query } = acquirersOf(fixture)
const { inTransaction, waiters } = callersOf(fixture, { scope: 's', key: 'k' })
const DAY_MS = 24 * HOUR_MS
const START = new Date('2026-06-15T12:00:00Z')

interface LockResult {
  state: string
  holder?: string
  fence: number
  leftMs: number | null
}

const send = async (sql: string, values: unknown[], on: Executor = fixture.pool): Promise<unknown> =>
  (await on.query(`select ${fixture.schema.name}.${sql} as result`, values)).rows[0]?.result
const take = (holder: string | null, leaseMs: number | null = HOUR_MS, on?: Executor) =>
  send("acquire_take_lock('x', 0, $1, $2)", [holder, leaseMs], on) as Promise<LockResult>
const renew = (holder: string, fence: number, leaseMs = HOUR_MS, on?: Executor) =>
  send("acquire_renew_lock('x', 0, $1, $2, $3)", [holder, fence, leaseMs], on)
const release = (holder: string, fence: number, on?: Executor) =>
  send("acquire_release_lock('x', 0, $1, $2)", [holder, fence], on)
const stateOf = (holder: string, fence: number) => send("acquire_check_lock('x', 0, $1, $2)", [holder, fence])
const guard = (fence: number, tx: Executor) =>
  tx.query(
    `select from ${fixture.schema.name}.lock where name = 'x' and permit = 0 and fence = $1 for key share`,
    [fence],
  )

describe('the lock table', () => {
  it('gives a lock to one, and tells the others how long that lasts', async () => {
    await fixture.schema.clock.freeze(START)
    const mine = await take('ann', 60_000)
    expect(mine).toMatchObject({ state: 'taken', holder: 'ann', leftMs: 60_000 })
    await fixture.schema.clock.advance(20_000)
    expect(await take('bob')).toMatchObject({
      state: 'held',
      holder: 'ann',
      fence: mine.fence,
      leftMs: 40_000,
    })
    // Repeating the call after a lost answer returns the same lock and does not extend its lease.
    expect(await take('ann')).toEqual({ ...mine, leftMs: 40_000 })
    await fixture.schema.clock.advance(40_000)
    expect(await take('bob')).toMatchObject({ state: 'taken', holder: 'bob' })
  })

  it('has a fence that grows with each holder, each release, and each deletion', async () => {
    await fixture.schema.clock.freeze(START)
    const fences: number[] = []
    const note = async (result: Promise<LockResult>) => fences.push((await result).fence)
    await note(take('a')) // made
    expect(await release('a', fences[0] as number)).toBe('held')
    fences.push(Number((await query('select fence from {schema}.lock'))[0]?.fence)) // released
    await note(take('b', 1_000)) // taken again, at the same moment
    await fixture.schema.clock.advance(1_000)
    await note(take('c', 1_000)) // taken over
    await fixture.schema.clock.advance(2 * DAY_MS)
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ locksForgotten: 1 })
    await note(take('d')) // made anew
    expect(fences).toEqual([...new Set(fences)].toSorted((a, b) => a - b))
    expect(fences.length).toBe(5)
  })

  it('lets a holder renew and release by its fence, and no other', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await take('ann', 60_000)
    expect(await renew('ann', fence - 1)).toBe('lost')
    expect(await renew('ann', fence, 90_000)).toBe('held')
    expect(await take('bob')).toMatchObject({ leftMs: 90_000 })
    expect(await release('ann', fence + 1)).toBe('lost')
    expect(await take('bob')).toMatchObject({ state: 'held' })
    await fixture.schema.clock.advance(90_000)
    const taken = await take('bob')
    expect(await stateOf('ann', fence)).toBe('lost')
    expect(await renew('ann', fence, 7 * HOUR_MS)).toBe('lost')
    expect(await release('ann', fence)).toBe('lost')
    expect(await take('eve')).toMatchObject({
      ...{ state: 'held', holder: 'bob', fence: taken.fence, leftMs: HOUR_MS },
    })
    // By its own old fence, too.
    await fixture.schema.clock.advance(HOUR_MS)
    await take('bob')
    expect(await stateOf('bob', taken.fence)).toBe('lost')
  })

  it('lets a holder renew what has run out and nobody has taken', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await take('ann', 1_000)
    await fixture.schema.clock.advance(5_000)
    expect(await renew('ann', fence, 1_000)).toBe('held')
    expect(await take('bob')).toMatchObject({ state: 'held', leftMs: 1_000 })
  })

  it('knows a release again whose answer was lost, until another has it', async () => {
    const { fence } = await take('ann')
    expect([await release('ann', fence), await release('ann', fence)]).toEqual(['held', 'released'])
    expect(await stateOf('bob', fence)).toBe('lost')
    expect(await renew('ann', fence)).toBe('released')
    await take('bob')
    expect(await release('ann', fence)).toBe('lost')
    expect(await send("acquire_release_lock('nobody has made it', 0, 'ann', 1)", [])).toBe('lost')
  })

  it('belongs to a transaction without a lease: nobody else has it before that ends', async () => {
    const { fence } = await take('old')
    await release('old', fence)
    await inTransaction(async (tx) => {
      expect(await take(null, null, tx)).toMatchObject({
        state: 'taken',
        holder: expect.stringMatching(/^tx:\d+$/),
      })
      expect(await take('bob')).toEqual({ state: 'busy' })
      expect(await take(null, null, tx)).toMatchObject({ state: 'taken' }) // it is its own
    })
    expect(await take('bob')).toMatchObject({ state: 'taken' })
  })

  it('is refused while another transaction makes it, and its time for waiting is not what the caller has', async () => {
    await inTransaction(async (tx) => {
      await take(null, null, tx)
      await inTransaction(async (other) => {
        await other.query("set local lock_timeout = '7777ms'")
        expect(await take(null, null, other)).toEqual({ state: 'busy' })
        expect((await other.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7777ms' }])
      })
    })
  })

  it('is free again if its transaction rolls back', async () => {
    await inTransaction(
      async (tx) => {
        await tx.query("set local lock_timeout = '7777ms'")
        expect(await take(null, null, tx)).toMatchObject({ state: 'taken' })
        expect((await tx.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7777ms' }])
      },
      { last: 'rollback' },
    )
    expect(await query('select from {schema}.lock')).toEqual([])
    expect(await take('bob')).toMatchObject({ state: 'taken' })
  })

  it('is not taken over nor released while it is guarded, but can be renewed', async () => {
    const { fence } = await take('ann', 100)
    await inTransaction(async (tx) => {
      await guard(fence, tx)
      await fixture.schema.clock.advance(HOUR_MS)
      expect(await take('bob')).toEqual({ state: 'busy' })
      expect(await renew('ann', fence)).toBe('held')
      const releasing = release('ann', fence)
      await until(async () => (await waiters()) === 1, 'the release to wait')
      await tx.query('commit')
      expect(await releasing).toBe('held')
    })
    expect(await take('bob')).toMatchObject({ state: 'taken' })
  })

  it('is judged by the clock as it stands when its row is locked', async () => {
    const clock = await movingClock(fixture.pool, fixture.schema.name, START)
    const { fence } = await take('ann', 60_000)
    // A row that is renewed while another reads it: seen as run out, and live once it is locked.
    const send = async (sql: string) => {
      const client = await fixture.pool.connect()
      try {
        await client.query('begin')
        await client.query(`select from ${fixture.schema.name}.lock where name = 'x' for no key update`)
        const waiting = fixture.pool.query(`select ${fixture.schema.name}.${sql} as result`)
        await until(async () => (await waiters()) === 1, 'somebody to wait')
        await clock.set(new Date(START.getTime() + 30_000))
        await client.query('commit')
        return (await waiting).rows[0].result
      } finally {
        client.release()
      }
    }
    expect(await send(`acquire_renew_lock('x', 0, 'ann', ${fence}, 60000)`)).toBe('held')
    expect(await take('bob')).toMatchObject({ state: 'held', leftMs: 60_000 })
  })

  it('is forgotten a day after somebody had it, and not before', async () => {
    await fixture.schema.clock.freeze(START)
    const { fence } = await take('ann', DAY_MS)
    const forget = async () => (await fixture.dibs.maintain({ once: true })).locksForgotten
    await fixture.schema.clock.advance(2 * DAY_MS - 1)
    expect(await forget()).toBe(0) // its lease ran out less than a day ago
    await release('ann', fence)
    const again = await take('bob', HOUR_MS)
    await release('bob', again.fence)
    await fixture.schema.clock.advance(DAY_MS - 1)
    expect(await forget()).toBe(0) // it was had less than a day ago
    await fixture.schema.clock.advance(1)
    await inTransaction(async (tx) => {
      await tx.query(`select from ${fixture.schema.name}.lock for key share`)
      expect(await forget()).toBe(0) // it is in use
    })
    expect(await forget()).toBe(1)
  })

  it('tells permits of a name apart', async () => {
    for (const permit of [0, 1])
      expect(await send(`acquire_take_lock('x', ${permit}, 'holder ${permit}', 1000)`, [])).toMatchObject({
        state: 'taken',
      })
    expect(await query('select permit from {schema}.lock order by 1')).toEqual([{ permit: 0 }, { permit: 1 }])
  })
})
