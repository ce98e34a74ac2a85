import { describe, expect, it } from 'vitest'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import {
  BusyError,
  ConflictError,
  FingerprintMismatchError,
  InProgressError,
  NotInTransactionError,
  PermanentError,
} from '../../errors.js'
import { countTraffic } from '../../testing/count-traffic.js'

const fixture = openClaims()
const at = { scope: 'orders', key: 'k' }
const { write, startSlowly, inTransaction } = callersOf(fixture, at)
describe("once, in the caller's transaction", () => {
  it('commits with it, in two round trips', async () => {
    const { value, roundTrips } = await countTraffic(fixture.pool, () =>
      inTransaction((tx) => fixture.dibs.once({ ...at, tx }, async () => 1)),
    )
    expect({ value, roundTrips }).toEqual({ value: 1, roundTrips: 4 }) // with BEGIN and COMMIT
    const replay = await countTraffic(fixture.pool, () =>
      inTransaction((tx) => fixture.dibs.once({ ...at, tx }, async () => 2)),
    )
    expect(replay).toMatchObject({ value: 1, roundTrips: 3 })
  })

  it('hands on the transaction it was given', async () => {
    await inTransaction(async (tx) => {
      await fixture.dibs.once({ ...at, tx }, async (given) => void expect(given).toBe(tx))
    })
    await fixture.dibs.transaction(async (tx) => {
      await fixture.dibs.once({ ...at, key: 'other', tx }, async (given) => void expect(given).toBe(tx))
    })
  })

  it('leaves nothing if the caller rolls back', async () => {
    await inTransaction((tx) => fixture.dibs.once({ ...at, tx }, write('a')), { last: 'rollback' })
    const terminal = inTransaction((tx) =>
      fixture.dibs.once({ ...at, tx }, () => Promise.reject(new PermanentError('no'))),
    )
    await expect(terminal).rejects.toThrow('no')
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
    expect(await fixture.logged()).toEqual([])
  })

  it('keeps a terminal error if the caller goes on and commits, and releases after any other', async () => {
    const fail = (error: Error) =>
      inTransaction((tx) => fixture.dibs.once({ ...at, tx }, () => Promise.reject(error)).catch(() => {}))
    await fail(new Error('not now'))
    expect(await fixture.dibs.claims.get(at)).toMatchObject({ status: 'pending', held: 'released' })
    await fail(new PermanentError('never'))
    await expect(fixture.dibs.once(at, write('b'))).rejects.toThrow('never')
    expect(await fixture.dibs.claims.get(at)).toMatchObject({ status: 'failed', attempt: 2 })
  })

  it('never aborts it by a conflict: running out of time, a mismatch, a replay', async () => {
    const first = startSlowly({ fingerprint: 1 })
    await first.claimed
    await inTransaction(async (tx) => {
      await write('before')(tx)
      await expect(fixture.dibs.once({ ...at, tx, waitMs: 0 }, write('x'))).rejects.toThrow(InProgressError)
      await expect(fixture.dibs.once({ ...at, tx, waitMs: 30 }, write('x'))).rejects.toThrow(BusyError)
      first.goOn()
      expect(await fixture.dibs.once({ ...at, tx, fingerprint: 1 }, write('x'))).toEqual(await first.ended)
      const other = fixture.dibs.once({ ...at, tx, fingerprint: 2 }, write('x'))
      await expect(other).rejects.toThrow(FingerprintMismatchError)
      await write('after')(tx)
    })
    expect(await fixture.logged()).toEqual(['slow', 'before', 'after'])
  })

  it('leaves the lock_timeout of the caller as it is', async () => {
    const shown = await inTransaction(async (tx) => {
      await tx.query("set local lock_timeout = '7s'")
      await fixture.dibs.once({ ...at, tx }, async () => 1)
      return (await tx.query('show lock_timeout')).rows[0]
    })
    expect(shown).toEqual({ lock_timeout: '7s' })
  })

  it.each(['repeatable read', 'serializable'] as const)(
    'at %s a winner after the snapshot is a conflict',
    async (isolation) => {
      const attempt = inTransaction(
        async (tx) => {
          await tx.query('select 1') // the snapshot
          await fixture.dibs.once(at, write('winner'))
          return fixture.dibs.once({ ...at, tx }, write('loser'))
        },
        { isolation },
      )
      await expect(attempt).rejects.toThrow(ConflictError)
      let tries = 0
      const repeated = await fixture.dibs.transaction(
        async (tx) => {
          tries++
          await tx.query('select 1')
          if (tries === 1)
            await fixture.pool
              .query('select 1')
              .then(() => fixture.other.once({ ...at, key: 'late' }, write('winner')))
          return fixture.dibs.once({ ...at, key: 'late', tx }, write('loser'))
        },
        { isolation },
      )
      expect(tries).toBe(2)
      expect(repeated).toMatchObject({ run: expect.any(Number) })
      expect(await fixture.logged()).toEqual(['winner', 'winner'])
    },
  )

  it('refuses to be nested in itself', async () => {
    const inner = () =>
      inTransaction((tx) =>
        fixture.dibs.once({ ...at, tx }, async () => {
          await fixture.dibs.once({ ...at, tx }, write('inner'))
        }),
      )
    await expect(inner()).rejects.toThrow('`key` "k" is being worked on in this very transaction')
    const alone = fixture.dibs.once(at, async (tx) => {
      await fixture.dibs.once({ ...at, tx }, write('inner'))
    })
    await expect(alone).rejects.toThrow('`key` "k" is being worked on in this very transaction')
    expect(await fixture.logged()).toEqual([])
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
  })

  it('refuses the same key twice at a time', async () => {
    const both = await inTransaction((tx) =>
      Promise.allSettled([1, 2].map((n) => fixture.dibs.once({ ...at, tx }, async () => n))),
    )
    expect(both.map(({ status }) => status)).toEqual(['fulfilled', 'rejected'])
    expect(await fixture.dibs.once(at, async () => 3)).toBe(1)
  })

  it('takes the same key again after it was given back', async () => {
    const value = await inTransaction(async (tx) => {
      await fixture.dibs.once({ ...at, tx }, () => Promise.reject(new Error('no'))).catch(() => {})
      return fixture.dibs.once({ ...at, tx }, async () => 2)
    })
    expect(value).toBe(2)
  })

  it('refuses what is no transaction', async () => {
    await expect(fixture.dibs.once({ ...at, tx: fixture.pool as never }, write('a'))).rejects.toThrow(
      NotInTransactionError,
    )
  })
})
