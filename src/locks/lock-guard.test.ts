import { drizzle } from 'drizzle-orm/postgres-js'
import pg from 'pg'
import postgres from 'postgres'
import { beforeAll, describe, expect, it, vi } from 'vitest'
import { callersOf } from '../../test/claims/callers.js'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { claim } from '../claims/acquire/acquire-claims.js'
import {
  ConnectionLostError,
  FenceLostError,
  GuardedError,
  InvalidInputError,
  NotInTransactionError,
} from '../errors.js'
import { fromDrizzle } from '../postgres/adapters/from-drizzle.js'
import { fromPostgresJs } from '../postgres/adapters/from-postgres-js.js'
import type { Executor, Tx } from '../postgres/executor.js'
import { PgTransaction } from '../postgres/joined-transaction.js'
import { sleep } from '../postgres/sleep.js'
import type { Isolation, Transaction } from '../postgres/transaction-types.js'
import { countTraffic } from '../testing/count-traffic.js'
import type { Lock } from './lock.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000
const { inTransaction } = callersOf(fixture, { scope: 's', key: 'k' })
const isolations: Isolation[] = ['read committed', 'repeatable read', 'serializable']
const log = (tx: Executor, name: string) => tx.query(`insert into ${fixture.log} (name) values ($1)`, [name])
const stolen = (fence: number) => ({ code: 'DIBS_FENCE_LOST', reason: 'stolen', fence })

/** Another has it by now. */
async function takeOver(name: string): Promise<Lock> {
  await fixture.schema.clock.advance(2 * HOUR_MS)
  return (await fixture.other.tryLock(name, { leaseMs: 10 * HOUR_MS })) as Lock
}

/** Each guards a part of the transaction that is then undone, and goes on. */
const undone: Record<string, (tx: Transaction, lock: Lock) => Promise<void>> = {
  async 'a savepoint by hand'(tx, lock) {
    await tx.query('savepoint s')
    await lock.guard(tx)
    await tx.query('/* s */ rollback to savepoint s; select 1')
  },
  async 'a savepoint by hand, after a failure'(tx, lock) {
    await tx.query('savepoint s')
    await lock.guard(tx)
    await expect(tx.query('select 1/0')).rejects.toThrow()
    await tx.query('rollback to savepoint s')
  },
  async 'a savepoint by hand, past the transaction'(tx, lock) {
    await tx.query('savepoint s')
    await lock.guard(tx)
    await tx.client.query('rollback to savepoint s')
    await tx.query('select 1')
  },
  async 'a savepoint by hand, noticed in another that is rolled back as well'(tx, lock) {
    await tx.query('savepoint s')
    await lock.guard(tx)
    await tx.client.query('rollback to savepoint s')
    await expect(tx.savepoint(fail)).rejects.toThrow('on purpose')
  },
  async acquire(tx, lock) {
    const guardAndFail = () => lock.guard(tx).then(fail)
    const acquired = fixture.dibs.acquire([claim.lock('part')], { tx }, guardAndFail)
    await expect(acquired).rejects.toThrow('on purpose')
  },
  async 'acquire in a savepoint'(tx, lock) {
    const failed = tx.savepoint(async (part) => {
      await undone.acquire?.(part, lock)
      await fail()
    })
    await expect(failed).rejects.toThrow('on purpose')
  },
  async singleton(tx, lock) {
    const spec = { ...slot, tx }
    await expect(fixture.dibs.singleton(spec, () => lock.guard(tx).then(fail))).rejects.toThrow('on purpose')
  },
  async voidSlot(tx, lock) {
    const done = await fixture.dibs.singleton({ ...slot, tx }, async (_, { key, id }) => ({ key, id }))
    const spec = { scope: slot.scope, slot: done, tx }
    await expect(fixture.dibs.voidSlot(spec, () => lock.guard(tx).then(fail))).rejects.toThrow('on purpose')
  },
  async once(tx, lock) {
    const spec = { scope: 's', key: 'part', tx }
    await expect(fixture.dibs.once(spec, () => lock.guard(tx).then(fail))).rejects.toThrow('on purpose')
  },
}
const slot = { scope: 'closing', per: 'day', timeZone: 'UTC' } as const
const fail = async (): Promise<never> => {
  throw new Error('on purpose')
}

describe.each(isolations)('guard, at %s', (isolation) => {
  it('lets the transaction of the holder through, for one round trip', async () => {
    await using lock = await fixture.dibs.lock('till')
    await fixture.dibs.transaction(
      async (tx) => {
        await tx.query('select 1')
        await lock.guard(tx)
        await log(tx, 'mine')
      },
      { isolation },
    )
    expect(await fixture.logged()).toEqual(['mine'])
    await inTransaction(async (client) => {
      const traffic = await countTraffic(fixture.pool, () => lock.guard(client))
      expect(traffic.roundTrips).toBeLessThanOrEqual(1)
    })
  })

  it('refuses the transaction of one that has lost it, which is not run again', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    await using _ = await takeOver('till')
    let runs = 0
    const events = await fixture.eventsOf(async () => {
      const late = fixture.dibs.transaction(
        async (tx) => {
          runs++
          await log(tx, 'late')
          await mine.guard(tx)
        },
        { isolation },
      )
      await expect(late).rejects.toMatchObject(stolen(mine.fence))
    })
    expect(runs).toBe(1)
    expect(events.map(([name]) => name)).toEqual(['dibs:lock.fence-rejected', 'dibs:lock.lost'])
    expect(events[0]?.[1]).toMatchObject({ fence: mine.fence, where: 'guard' })
    expect(mine.signal.aborted).toBe(true)
    expect(await fixture.logged()).toEqual([])
  })

  it('makes the transaction fail also for a caller who goes on after the error', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    await using _ = await takeOver('till')
    const late = fixture.dibs.transaction(
      async (tx) => {
        await log(tx, 'late')
        await mine.guard(tx).catch(() => {})
      },
      { isolation },
    )
    await expect(late).rejects.toMatchObject(stolen(mine.fence))
    expect(await fixture.logged()).toEqual([])
  })

  it('cannot be escaped by a savepoint', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    await using _ = await takeOver('till')
    const late = fixture.dibs.transaction(
      async (tx) => {
        await log(tx, 'late')
        await tx.savepoint((part) => mine.guard(part)).catch(() => {})
      },
      { isolation },
    )
    await expect(late).rejects.toMatchObject(stolen(mine.fence))
    expect(await fixture.logged()).toEqual([])
  })

  it.each([1, 2, 3])(
    'outlives %s savepoints that it was in, which have failed for another reason',
    async (depth) => {
      const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
      const fail = async (tx: Transaction, left: number): Promise<void> => {
        const failed = tx.savepoint(async (part) => {
          if (left > 1) await fail(part, left - 1)
          else await part.savepoint((inner) => mine.guard(inner))
          throw new Error('on purpose')
        })
        await expect(failed).rejects.toThrow('on purpose')
      }
      await fixture.dibs.transaction(
        async (tx) => {
          await fail(tx, depth)
          await fixture.schema.clock.advance(2 * HOUR_MS)
          expect(await fixture.other.tryLock('till')).toBeNull()
          await log(tx, 'mine')
        },
        { isolation },
      )
      expect(await fixture.logged()).toEqual(['mine'])
    },
  )

  it.each(Object.keys(undone))('outlives what is undone of its transaction: %s', async (how) => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    await fixture.dibs.transaction(
      async (tx) => {
        await undone[how]?.(tx, mine)
        await fixture.schema.clock.advance(2 * HOUR_MS)
        expect(await fixture.other.tryLock('till')).toBeNull()
        await log(tx, 'mine')
      },
      { isolation },
    )
    expect(await fixture.logged()).toEqual(['mine'])
  })

  it('lets nothing be committed if it is lost by the time that a savepoint is rolled back', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    let next: Lock | undefined
    const late = fixture.dibs.transaction(
      async (tx) => {
        await log(tx, 'late')
        await tx.query('savepoint s')
        await mine.guard(tx)
        // Past the handle, so that it is noticed only at COMMIT.
        await tx.client.query('rollback to savepoint s')
        next = await takeOver('till')
      },
      { isolation },
    )
    await expect(late).rejects.toMatchObject(stolen(mine.fence))
    expect(await fixture.logged()).toEqual([])
    await next?.release()
  })

  it('goes on after a savepoint that was rolled back though the lock was given back meanwhile', async () => {
    const mine = await fixture.dibs.lock('till')
    await fixture.dibs.transaction(
      async (tx) => {
        await mine.guard(tx)
        await log(tx, 'mine')
        await tx.query('savepoint s')
        expect(await mine.release()).toBe('released')
        await tx.query('rollback to savepoint s')
        expect(await fixture.other.tryLock('till')).toBeNull()
      },
      { isolation },
    )
    expect(await fixture.logged()).toEqual(['mine'])
    await using _ = (await fixture.other.tryLock('till')) as Lock
  })

  it('is taken again once, however often it was taken', async () => {
    await using mine = await fixture.dibs.lock('till')
    const send = vi.spyOn(PgTransaction.prototype, 'send')
    await fixture.dibs.transaction(
      async (tx) => {
        for (let round = 1; round <= 10; round++) {
          await tx.query('savepoint s')
          await mine.guard(tx)
          await tx.query('rollback to savepoint s')
        }
      },
      { isolation },
    )
    const guards = send.mock.calls.filter(([{ text }]) => text.includes('lock_guard'))
    send.mockRestore()
    expect(guards).toHaveLength(20)
  })

  it('refuses a lease that has run out though nobody has taken it', async () => {
    // Above read committed the server tells by the snapshot, so its holder does by its own clock.
    const byServer = isolation === 'read committed'
    const mine = await fixture.dibs.lock('till', byServer ? { leaseMs: HOUR_MS } : { maxHoldMs: 900 })
    if (byServer) await fixture.schema.clock.advance(2 * HOUR_MS)
    else await expect.poll(() => mine.signal.aborted, { timeout: 30_000 }).toBe(true)
    const late = fixture.dibs.transaction((tx) => mine.guard(tx), { isolation })
    await expect(late).rejects.toMatchObject({ reason: byServer ? 'expired' : 'max hold' })
  })

  it('holds the next holder up until the transaction has ended, and neither a renewal nor a release', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: 3_000 })
    const began = deferred()
    const goOn = deferred()
    const guarded = fixture.dibs.transaction(
      async (tx) => {
        await mine.guard(tx)
        // Not ended by the server: it is to stay open here.
        await tx.query('set local idle_in_transaction_session_timeout = 0')
        await log(tx, 'mine')
        began.resolve()
        await goOn.promise
        await tx.query('select 1')
      },
      { isolation },
    )
    await began.promise
    const expiry = async () =>
      Number(
        (await fixture.pool.query(`select expires_at from ${fixture.schema.name}.lock`)).rows[0].expires_at,
      )
    const first = await expiry()
    await until(async () => (await expiry()) > first, 'it to be renewed')
    expect(await mine.release()).toBe('released')
    // The waiting call fails, and its error gives the reason.
    const refusal = fixture.other.lock('till', { waitMs: 100 })
    await expect(refusal).rejects.toMatchObject({ code: 'DIBS_GUARDED' })
    goOn.resolve()
    await guarded
    await using next = await fixture.other.lock('till')
    expect(next.fence).toBeGreaterThan(mine.fence)
    expect(await fixture.logged()).toEqual(['mine'])
  })
})

describe('guard', () => {
  it('lets nobody in past the lease while its transaction is open: they are told so', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: HOUR_MS })
    await inTransaction(async (tx) => {
      await mine.guard(tx)
      await fixture.schema.clock.advance(2 * HOUR_MS)
      expect(await fixture.other.tryLock('till')).toBeNull()
      const error = await fixture.other.lock('till', { waitMs: 80 }).catch((e) => e)
      expect(error).toBeInstanceOf(GuardedError)
      expect(error).toMatchObject({ lock: 'till', code: 'DIBS_GUARDED' })
      expect(error.message).toMatch(
        /^Lock "till" is guarded: a transaction that works under it has not ended, also after \d+ ms\. Try again in \d+ ms\.$/,
      )
      const waiting = fixture.other.lock('till', { waitMs: 10_000 })
      await log(tx, 'mine')
      await tx.query('commit')
      await using next = await waiting
      expect(next.tookOver?.fence).toBe(mine.fence)
    })
    expect(await fixture.logged()).toEqual(['mine'])
  })

  it('of a transaction whose snapshot is older than the lock runs again, and gets through', async () => {
    let runs = 0
    let mine: Lock | undefined
    await fixture.dibs.transaction(
      async (tx) => {
        runs++
        await tx.query(`select count(*) from ${fixture.schema.name}.lock`)
        mine ??= await fixture.dibs.lock('till')
        await mine.guard(tx)
      },
      { isolation: 'repeatable read' },
    )
    expect(runs).toBe(2)
    expect(await mine?.release()).toBe('released')
  })

  it.each(['repeatable read', 'serializable'] as const)(
    'of a transaction at %s that is older than a whole lease gets through, since it is renewed',
    async (isolation) => {
      await using mine = await fixture.dibs.lock('till', { leaseMs: 4_000 })
      let runs = 0
      await fixture.dibs.transaction(
        async (tx) => {
          runs++
          await tx.query('select 1')
          await new Promise((resolve) => setTimeout(resolve, 5_000))
          await mine.guard(tx)
          await log(tx, 'mine')
        },
        { isolation },
      )
      expect([runs, await fixture.logged()]).toEqual([1, ['mine']])
    },
  )

  it('of a transaction whose snapshot is older than a renewal gets through', async () => {
    const mine = await fixture.dibs.lock('till', { leaseMs: 3_000 })
    const expiry = async () => Number((await fixture.dibs.locks.inspect('till'))[0]?.leaseUntil)
    let runs = 0
    await fixture.dibs.transaction(
      async (tx) => {
        runs++
        const before = await expiry()
        await tx.query(`select count(*) from ${fixture.schema.name}.lock`)
        await until(async () => (await expiry()) > before, 'it to be renewed')
        await mine.guard(tx)
      },
      { isolation: 'repeatable read' },
    )
    expect(runs).toBe(1)
    expect(await mine.release()).toBe('released')
  })

  it('fails the transaction also where the lock is known to be lost or released', async () => {
    const released = await fixture.dibs.lock('till')
    await released.release()
    const lost = await fixture.dibs.lock('till', { leaseMs: HOUR_MS, maxHoldMs: 50 })
    await until(() => lost.signal.aborted, 'it to be lost')
    await fixture.pool.query(`update ${fixture.schema.name}.lock set expires_at = 'infinity'`)
    for (const isolation of isolations) {
      for (const lock of [released, lost]) {
        const late = fixture.dibs.transaction(
          async (tx) => {
            await log(tx, 'late')
            expect(await lock.guard(tx).catch((error) => error)).toBeInstanceOf(FenceLostError)
          },
          { isolation },
        )
        await expect(late).rejects.toThrow(FenceLostError)
      }
    }
    expect(await fixture.logged()).toEqual([])
  })

  it('is for an open transaction that may write', async () => {
    await using mine = await fixture.dibs.lock('till')
    await inTransaction(async (tx) => {
      await tx.query('set transaction read only')
      const error = await mine.guard(tx).catch((e) => e)
      expect(error).toBeInstanceOf(InvalidInputError)
      expect(error.message).toContain('is READ ONLY (it must be READ WRITE')
    })
    await inTransaction(async (tx) => {
      const error = await mine.guard(tx, { endsIdle: 'no' as never }).catch((e) => e)
      expect(error).toBeInstanceOf(InvalidInputError)
      expect(error.message).toContain('must be true or false, not "no"')
    })
    await expect(mine.guard(fixture.pool as never)).rejects.toThrow(NotInTransactionError)
    const client = await fixture.pool.connect()
    await expect(mine.guard(client)).rejects.toThrow(NotInTransactionError)
    client.release()
  })
})

describe('a guarded transaction that stands still', () => {
  let unheard: unknown[] = []
  beforeAll(() => {
    const note = (error: unknown) => void unheard.push(error)
    process.on('uncaughtException', note)
    return () => void process.off('uncaughtException', note)
  })

  it('is ended by the server when its lease would be, and the process lives on', async () => {
    unheard = []
    const mine = await fixture.dibs.lock('till', { leaseMs: 4_000 })
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    await client.query('begin')
    await mine.guard(client)
    const { rows } = await client.query('show idle_in_transaction_session_timeout')
    expect(Number.parseInt(rows[0].idle_in_transaction_session_timeout, 10)).toBeLessThanOrEqual(4_000)
    const ended = new Promise((resolve) => client.once('end', resolve))
    await ended
    await expect(client.query('commit')).rejects.toThrow()
    expect(unheard).toEqual([])
    expect(await mine.release()).toBe('released')
  })

  it.each(['a statement', 'COMMIT'])('is told why it was ended by %s', async (what) => {
    await using mine = await fixture.dibs.lock('till', { leaseMs: 4_000 })
    const ended = fixture.dibs.transaction(async (tx) => {
      await mine.guard(tx)
      await new Promise((resolve) => tx.client.once('error', resolve))
      if (what === 'a statement') await log(tx, 'late')
    })
    const error = await ended.catch((e) => e)
    expect(error).toBeInstanceOf(ConnectionLostError)
    expect(error.message).toBe(
      'The server has ended this transaction, and nothing was kept: it stood idle for longer than idle_in_transaction_session_timeout, which lock.guard lowers to the leaseMs of the lock.',
    )
    expect(error.cause).toMatchObject({ code: '25P03' })
  })

  it.each(['itself', 'Drizzle'])(
    'is let alone over postgres.js, by %s: it would end the process',
    async (by) => {
      unheard = []
      const mine = await fixture.dibs.lock('till', { leaseMs: 4_000 })
      const sql = postgres(url, { max: 1, prepare: !viaPgBouncer, onnotice: () => {} })
      const standStill = async (tx: Tx) => {
        await log(tx, 'mine')
        await mine.guard(tx)
        await sleep(5_000)
      }
      if (by === 'itself') await sql.begin((own) => standStill(fromPostgresJs(own)))
      else await drizzle(sql).transaction((own) => standStill(fromDrizzle(own)))
      await sql.end()
      await mine.release()
      expect(unheard).toEqual([])
      expect(await fixture.logged()).toEqual(['mine'])
    },
  )

  it('keeps a limit of its own that is lower', async () => {
    await using mine = await fixture.dibs.lock('till')
    await inTransaction(async (tx) => {
      await tx.query("set local idle_in_transaction_session_timeout = '7777ms'")
      await mine.guard(tx)
      expect((await tx.query('show idle_in_transaction_session_timeout')).rows).toEqual([
        { idle_in_transaction_session_timeout: '7777ms' },
      ])
    })
    await inTransaction(async (tx) => {
      await tx.query(
        "set local idle_in_transaction_session_timeout = '1h'; set local lock_timeout = '7777ms'",
      )
      await mine.guard(tx)
      const { rows } = await tx.query(
        "select current_setting('idle_in_transaction_session_timeout') as idle, current_setting('lock_timeout') as wait",
      )
      expect(Number.parseInt(rows[0].idle, 10)).toBeLessThanOrEqual(30_000)
      expect(rows[0].wait).toBe('7777ms')
    })
  })

  it('leaves no listener on the client, nor a limit on its session', async () => {
    await using mine = await fixture.dibs.lock('till')
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    for (let n = 0; n < 3; n++) {
      await client.query('begin')
      await mine.guard(client)
      await mine.guard(client)
      expect(client.listenerCount('error')).toBe(1)
      await client.query(n === 1 ? 'rollback' : 'commit')
      expect(client.listenerCount('error')).toBe(0)
    }
    expect((await client.query('show idle_in_transaction_session_timeout')).rows).toEqual([
      { idle_in_transaction_session_timeout: '0' },
    ])
    await client.end()
  })
})
