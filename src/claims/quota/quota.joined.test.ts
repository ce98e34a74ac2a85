import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { openQuotas } from '../../../test/claims/open-quotas.js'
import { realTime } from '../../../test/real-time.js'
import { BusyError, ConflictError, NotInTransactionError, QuotaExceededError } from '../../errors.js'
import type { Quota } from './quota.js'

const fixture = openQuotas()
const daily = { limit: 50, per: 'day' } as const

async function withClient<T>(fn: (client: pg.PoolClient) => Promise<T>): Promise<T> {
  const client = await fixture.pool.connect()
  try {
    return await fn(client)
  } finally {
    client.release()
  }
}

describe('in the transaction of the caller', () => {
  it('lives with its commit', async () => {
    const points = fixture.dibs.quota('points', daily)
    await fixture.dibs.transaction(async (tx) => {
      expect(await points.take('child', 5, { tx })).toMatchObject({ used: 5 })
      expect(await points.take('child', 5, { tx, id: 'event-1' })).toMatchObject({ used: 10 })
      expect(await points.take('child', 5, { tx, id: 'event-1' })).toMatchObject({ used: 10, replayed: true })
      const hold = await points.reserve('child', 7, { tx })
      expect(await hold.settle(6, { tx })).toMatchObject({ used: 16, held: 0 })
      const other = await points.reserve('child', 7, { tx })
      await other.void({ tx })
      expect(await points.refund('event-1', { tx, amount: 3 })).toEqual({ replayed: false })
      expect(await points.peek('child', { tx })).toMatchObject({ used: 13, held: 0 })
      expect(await points.peek('child')).toMatchObject({ used: 0 })
    })
    expect(await points.peek('child')).toMatchObject({ used: 13, held: 0 })
    await fixture.expectClean(points)
  })

  it('dies with its rollback', async () => {
    const points = fixture.dibs.quota('points', daily)
    await points.take('child', 5, { id: 'event-1' })
    const hold = await points.reserve('child', 7)
    const failed = fixture.dibs.transaction(async (tx) => {
      await points.take('child', 5, { tx, id: 'event-2' })
      await points.take('new', 5, { tx })
      await points.refund('event-1', { tx })
      await hold.settle(7, { tx })
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect(await points.peek('child')).toMatchObject({ used: 5, held: 7 })
    expect(await fixture.rowOf('new')).toBeUndefined()
    expect(await points.take('child', 5, { id: 'event-2' })).toMatchObject({ replayed: false })
    await fixture.expectClean(points)
  })

  it('dies with its savepoint', async () => {
    const points = fixture.dibs.quota('points', daily)
    await withClient(async (tx) => {
      await tx.query('begin')
      await points.take('child', 5, { tx })
      await tx.query('savepoint here')
      await points.take('child', 20, { tx, id: 'event-1' })
      await tx.query('rollback to here')
      expect(await points.take('child', 20, { tx, id: 'event-1' })).toMatchObject({
        ...{ used: 25, replayed: false },
      })
      await tx.query('commit')
    })
    expect(await points.peek('child')).toMatchObject({ used: 25 })
    await fixture.expectClean(points)
  })

  it('leaves the transaction usable when it is refused', async () => {
    const points = fixture.dibs.quota('points', daily)
    await fixture.dibs.transaction(async (tx) => {
      await points.take('child', 50, { tx })
      await expect(points.take('child', 1, { tx })).rejects.toThrow(QuotaExceededError)
      await expect(points.reserve('child', 1, { tx })).rejects.toThrow(QuotaExceededError)
      await tx.query(`insert into ${fixture.log} (name) values ('went on')`)
    })
    expect(await fixture.logged()).toEqual(['went on'])
    expect(await points.peek('child')).toMatchObject({ used: 50 })
  })

  it(
    'gives up after a while, and leaves the transaction and its settings as they were',
    realTime,
    async () => {
      const points = fixture.dibs.quota('points', { ...daily, waitMs: 160 })
      const hold = await points.reserve('child', 5)
      await withClient(async (holder) => {
        await holder.query('begin')
        await points.take('child', 1, { tx: holder })
        await withClient(async (tx) => {
          await tx.query("begin; set local lock_timeout = '7s'")
          const calls = [
            () => points.take('child', 1, { tx }),
            () => points.reserve('child', 1, { tx }),
            () => hold.settle(1, { tx }),
            () => hold.void({ tx }),
          ]
          for (const call of calls) {
            const startedAt = performance.now()
            const error = await call().catch((thrown: unknown) => thrown)
            const ms = performance.now() - startedAt
            expect(error).toBeInstanceOf(BusyError)
            expect(error).toMatchObject({ retryAfterMs: 100 })
            expect(ms).toBeGreaterThan(150)
            expect(ms).toBeLessThan(5_000)
          }
          const { id } = await points.reserve('other', 2, { tx })
          await points.settle(id, 1, { tx })
          const { rows } = await tx.query('show lock_timeout')
          expect(rows).toEqual([{ lock_timeout: '7s' }])
          await tx.query('commit')
        })
        await holder.query('commit')
      })
      expect(await points.peek('child')).toMatchObject({ used: 1, held: 5 })
      expect(await points.peek('other')).toMatchObject({ used: 1 })
      await fixture.expectClean(points)
    },
  )

  it('waits half a second where nothing is said, and less than its statement may take', async () => {
    const points = fixture.dibs.quota('points', daily)
    await withClient(async (holder) => {
      await holder.query('begin')
      await points.take('child', 1, { tx: holder })
      await withClient(async (tx) => {
        const waited = async (quota: Quota): Promise<number> => {
          const startedAt = performance.now()
          await expect(quota.take('child', 1, { tx })).rejects.toThrow(BusyError)
          return performance.now() - startedAt
        }
        await tx.query('begin')
        expect(await waited(points)).toBeGreaterThan(450)
        await tx.query("set local statement_timeout = '2s'")
        // Had its statement been ended, so had the transaction.
        await waited(fixture.dibs.quota('points', { ...daily, waitMs: 10_000 }))
        await tx.query('commit')
      })
      await holder.query('commit')
    })
  })

  it('does not wait for longer than its statement may take, however late each part of the wait ends', async () => {
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 10_000 })
    const rate = fixture.dibs.rateLimit('r', {
      ...{ algorithm: 'gcra', limit: 10, perMs: 1_000, burst: 10, waitMs: 10_000 },
    })
    await points.reserve('child', 1, { id: 'held' })
    await rate.take('child', 1)
    const bound = `function ${fixture.schema.name}.limit_lock_wait(ms integer) returns text language sql volatile as`
    const setting = "select pg_catalog.set_config('lock_timeout', ms::text, true)"
    await fixture.pool.query(`create or replace ${bound} $$ select pg_catalog.pg_sleep(0.05); ${setting} $$`)
    try {
      await withClient(async (holder) => {
        await holder.query('begin')
        await points.take('child', 1, { tx: holder })
        await rate.take('child', 1, { tx: holder })
        const calls = [
          (tx: pg.PoolClient) => points.take('child', 1, { tx }),
          (tx: pg.PoolClient) => points.settle('held', 1, { tx }),
          (tx: pg.PoolClient) => rate.take('child', 1, { tx }),
        ]
        const waiting = calls.map((call) =>
          withClient(async (tx) => {
            await tx.query("begin; set local statement_timeout = '3s'")
            await expect(call(tx)).rejects.toThrow(BusyError)
            await tx.query('select 1; commit')
          }),
        )
        await Promise.all(waiting)
        await holder.query('commit')
      })
    } finally {
      await fixture.pool.query(`create or replace ${bound} $$ ${setting} $$`)
    }
  })

  it('gets its turn when the other is done', async () => {
    const points = fixture.dibs.quota('points', { ...daily, waitMs: 10_000 })
    for (const last of ['commit', 'rollback'])
      await withClient(async (holder) => {
        await holder.query('begin')
        await points.take('child', 30, { tx: holder })
        const waiting = fixture.dibs.transaction((tx) => points.tryTake('child', 30, { tx }))
        await fixture.waiting(1)
        await holder.query(last)
        expect(await waiting).toMatchObject({ ok: last === 'rollback', used: 30 })
        await fixture.pool.query(`delete from ${fixture.schema.name}.quota`)
      })
  })

  it.each(['repeatable read', 'serializable'] as const)(
    'at %s, what was taken since is a conflict, and run again',
    async (isolation) => {
      const points = fixture.dibs.quota('points', daily)
      for (const before of [0, 5]) {
        const subject = `child-${before}`
        if (before > 0) await points.take(subject, before)
        await withClient(async (tx) => {
          await tx.query(`begin isolation level ${isolation}; select 1`)
          await points.take(subject, 45)
          await expect(points.take(subject, 5, { tx })).rejects.toThrow(ConflictError)
          await tx.query('rollback')
        })
        let attempts = 0
        const taken = await fixture.dibs.transaction(
          async (tx) => {
            attempts = tx.attempt
            await tx.query('select 1')
            if (tx.attempt === 1)
              await points.refund((await points.take(subject, 1, { id: subject, limit: 99 })).id ?? '')
            return points.tryTake(subject, 5, { tx })
          },
          { isolation },
        )
        expect(attempts).toBe(2)
        expect(taken).toMatchObject({ ok: before === 0, used: 50 })
      }
      await fixture.expectClean(points)
    },
  )

  it('does not take a pool for a transaction', async () => {
    const points = fixture.dibs.quota('points', daily)
    const tx = fixture.pool as never
    await expect(points.take('child', 1, { tx })).rejects.toThrow(NotInTransactionError)
    await expect(points.reserve('child', 1, { tx })).rejects.toThrow(NotInTransactionError)
    expect(await points.peek('child')).toMatchObject({ used: 0, held: 0 })
  })

  it('is reserved until it is rolled back', async () => {
    const points = fixture.dibs.quota('points', daily)
    const failed = fixture.dibs.transaction(async (tx) => {
      await using _ = await points.reserve('child', 5, { tx })
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect(await points.peek('child')).toMatchObject({ used: 0, held: 0 })
  })
})
