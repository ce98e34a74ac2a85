import type pg from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { holdersOf } from '../../../test/claims/holders.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until, url } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { realTime } from '../../../test/real-time.js'
import type { Dibs } from '../../dibs.js'
import { FenceLostError, InProgressError, OutcomeNotStoredError, TransientError } from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'

const fixture = openClaims()
const at = { scope: 'payments', key: 'k', mode: 'leased' } as const
const address = { scope: at.scope, key: at.key }
const HOUR_MS = 3_600_000
const { startHolder, abandon } = holdersOf(fixture, at)

describe('the lease', () => {
  // This test comes first, because a process is warned once.
  it('of many is renewed one after the other on one connection', async () => {
    const warnings: string[] = []
    const note = ({ message }: Error) => void warnings.push(message)
    process.on('warning', note)
    const goOn = deferred()
    const held = new Set<string>()
    const hold = (key: string) =>
      fixture.dibs.once({ ...at, key, leaseMs: 4_000 }, async (claim) => {
        held.add(key)
        await goOn.promise
        return claim.signal.aborted
      })
    const keys = Array.from({ length: 20 }, (_, n) => `many-${n}`)
    const ended = Promise.all(keys.map(hold))
    const leases = async () =>
      Promise.all(keys.map(async (key) => (await fixture.dibs.claims.get({ ...address, key }))?.leaseUntil))
    await until(() => held.size === keys.length, 'all to be held')
    const first = await leases()
    const areRenewed = async () => (await leases()).every((lease, n) => Number(lease) > Number(first[n]))
    await until(areRenewed, 'all to be renewed').finally(() => goOn.resolve())
    expect(await ended).toEqual(keys.map(() => false))
    process.off('warning', note)
    expect(warnings).toEqual([])
  })

  it('is renewed though handlers have taken all of the pool', async () => {
    await fixture.beside(
      async (dibs) => {
        const ran = dibs.once({ ...at, leaseMs: 3_000 }, (claim) =>
          dibs.transaction(async () => {
            const seen = new Set<number>()
            await until(async () => {
              const { leaseUntil } = (await fixture.dibs.claims.get(address)) ?? {}
              return claim.signal.aborted || seen.add(Number(leaseUntil)).size > 2
            }, 'two renewals')
            return claim.signal.aborted
          }),
        )
        expect(await ran).toBe(false)
        expect(await fixture.dibs.claims.get(address)).toMatchObject({ attempt: 1, lost: 0 })
      },
      { max: 1 },
    )
  })

  it('of many is renewed though other work has taken all of the pool', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const goOn = deferred()
        const keys = Array.from({ length: 20 }, (_, n) => `beside-${n}`)
        const held = new Set<string>()
        const calls = keys.map((key) =>
          dibs.once({ ...at, key, leaseMs: 6_000 }, async (claim) => {
            held.add(key)
            await goOn.promise
            return claim.signal.aborted
          }),
        )
        await until(() => held.size === keys.length, 'all to be held')
        const clients = await Promise.all([pool.connect(), pool.connect()])
        const leases = async () =>
          Promise.all(
            keys.map(async (key) => Number((await fixture.dibs.claims.get({ ...address, key }))?.leaseUntil)),
          )
        const first = await leases()
        const areRenewed = async () => (await leases()).every((lease, n) => lease > Number(first[n]))
        await until(areRenewed, 'all to be renewed').finally(() => {
          for (const client of clients) client.release()
          goOn.resolve()
        })
        expect(await Promise.all(calls)).toEqual(keys.map(() => false))
      },
      { max: 2 },
    )
  })

  it('is not lost to a renewal that comes after the outcome is stored', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const lost: unknown[] = []
        const stop = onEvent('dibs:once.lost', (event) => lost.push(event))
        let signal: AbortSignal | undefined
        const cut = proxy.inject({
          kind: 'cut',
          when: 'after',
          statement: 'claim_store_outcome',
          how: 'black-hole',
        })
        const call = dibs.once({ ...at, leaseMs: 1_200 }, async (claim) => {
          signal = claim.signal
          return 'done'
        })
        await cut.happened
        // Renewals follow each 400 ms.
        await new Promise((resolve) => setTimeout(resolve, 2_000))
        expect([lost, signal?.aborted]).toEqual([[], false])
        cut.end()
        proxy.inject({ kind: 'reset' })
        expect(await call).toBe('done')
        stop()
      },
      { connectionString: proxy.url },
    )
  })

  it('survives a connection that has gone silent', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const ran = dibs.once({ ...at, leaseMs: 3_600 }, async (claim) => {
          const cut = proxy.inject({
            kind: 'cut',
            when: 'before',
            statement: 'claim_renew',
            how: 'black-hole',
          })
          await cut.happened
          const until = performance.now() + 2_700
          while (performance.now() < until && !claim.signal.aborted)
            await new Promise((resolve) => setTimeout(resolve, 20))
          cut.end()
          return claim.signal.aborted
        })
        expect(await ran).toBe(false)
      },
      { connectionString: proxy.url },
    )
  })

  it('begins after the wait for a transaction that rolled back', async () => {
    const client = await fixture.pool.connect()
    await client.query('begin')
    const began = deferred()
    const goOn = deferred()
    const joined = fixture.dibs.once({ ...address, tx: client }, async () => {
      began.resolve()
      await goOn.promise
    })
    joined.catch(() => {})
    await began.promise
    const leased = fixture.dibs.once({ ...at, leaseMs: 4_000, waitMs: 10_000 }, async () => {
      const { leaseUntil } = (await fixture.dibs.claims.get(address)) ?? {}
      return (leaseUntil?.getTime() ?? 0) - (await fixture.dibs.now()).getTime()
    })
    const waitedUntil = performance.now() + 4_300
    await until(() => performance.now() > waitedUntil, 'longer than the lease')
    goOn.resolve()
    await joined
    await client.query('rollback')
    client.release()
    expect(await leased).toBeGreaterThan(500)
  })

  it('is renewed while the handler lives', async () => {
    const leaseMs = 3_000
    const holder = startHolder({ leaseMs })
    const claim = await holder.began
    const begun = (await fixture.dibs.claims.get(address))?.leaseUntil?.getTime() ?? 0
    await until(
      async () =>
        ((await fixture.dibs.claims.get(address))?.leaseUntil?.getTime() ?? 0) > begun + leaseMs / 2,
      'the lease to be renewed',
    )
    expect(claim.signal.aborted).toBe(false)
    holder.finish(() => 1)
    expect(await holder.ended).toMatchObject({ attempt: 1, replayed: false })
  })

  it('that was taken over fires the signal at the next renewal', async () => {
    const holder = startHolder({ leaseMs: 4_500 })
    const claim = await holder.began
    const events = await fixture.eventsOf(async () => {
      await fixture.schema.clock.advance(HOUR_MS)
      await fixture.dibs.once(at, async () => 2)
      await until(() => claim.signal.aborted, 'the signal')
    })
    const lost = events.filter(([name]) => name === 'dibs:once.lost')
    expect(lost).toMatchObject([['dibs:once.lost', { how: 'renewal' }]])
    expect(claim.signal.reason).toBeInstanceOf(FenceLostError)
    expect(claim.signal.reason.message).toContain('is lost: another holder took it over')
    holder.finish(() => claim.step('late', () => 1))
    await expect(holder.ended).rejects.toThrow(FenceLostError)
  })

  it('fires the signal when the server cannot be reached for as long as it lasts', realTime, async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const startedAt = performance.now()
        const ended = dibs.once({ ...at, leaseMs: 1_500 }, async (claim) => {
          proxy.inject({ kind: 'black-hole' })
          await new Promise((resolve) => claim.signal.addEventListener('abort', resolve))
          // No server can have answered that another caller has the claim.
          expect(claim.signal.reason.message).toMatch(
            /^The claim on .* could not be renewed before its lease ran out, so another may have taken it over\. Stop this work\.$/,
          )
          proxy.inject({ kind: 'heal' })
          proxy.inject({ kind: 'reset' })
          return performance.now() - startedAt
        })
        const tookMs = await ended
        expect(tookMs).toBeGreaterThan(1_000)
        expect(tookMs).toBeLessThan(8_000)
      },
      { connectionString: proxy.url },
    )
  })
})

describe('answers that are lost', () => {
  const cutOff = async (
    statement: string,
    times: number | 'always',
    run: (dibs: Dibs) => Promise<unknown>,
  ) => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const cut = proxy.inject({ kind: 'cut', when: 'after', statement, times })
        await run(dibs)
        expect(cut.strikes).toBeGreaterThan(0)
      },
      { connectionString: proxy.url },
    )
  }

  it('of the claim: the same call knows its claim again', async () => {
    await cutOff('claim_begin', 1, async (dibs) => {
      const held = await dibs.onceDetailed({ ...at, onAmbiguous: 'hold' }, async () => 1)
      expect(held).toMatchObject({ value: 1, attempt: 1, replayed: false })
    })
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ lost: 0, attempt: 1 })
  })

  it('of the claim: its lease is as old as the claim, and not as the call that found it again', async () => {
    const leaseMs = 30_000
    await cutOff('claim_begin', 1, async (dibs) => {
      type Connect = (callback: (error: Error | undefined, client: pg.PoolClient | undefined) => void) => void
      const connect = dibs.pool.connect.bind(dibs.pool) as Connect
      const stop = onEvent('dibs:commit.unknown', () => {
        // Most of the lease passes before the call can send its statement again.
        const late: Connect = (callback) =>
          void fixture.schema.clock.advance(leaseMs - 5_000).then(() => connect(callback))
        vi.spyOn(dibs.pool, 'connect').mockImplementationOnce(late as never)
      })
      await dibs.once({ ...at, leaseMs }, async () => {
        const isRenewed = async () => {
          const claim = await fixture.dibs.claims.get(address)
          const leftMs = Number(claim?.leaseUntil) - (await fixture.dibs.now()).getTime()
          return leftMs > leaseMs / 2
        }
        await until(isRenewed, 'the renewal of a lease that is about to run out', 5_000)
      })
      stop()
    })
  })

  it('of a takeover: the same call knows its claim again, and that it was ambiguous', async () => {
    await abandon()
    let asked = 0
    await cutOff('claim_begin', 1, async (dibs) => {
      const onAmbiguous = () => {
        asked++
        return 'retry' as const
      }
      expect(await dibs.onceDetailed({ ...at, onAmbiguous }, async () => 1)).toMatchObject({ attempt: 2 })
    })
    expect(asked).toBe(1)
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ lost: 1, attempt: 2 })
  })

  it('of the outcome: it is stored, and the caller gets it', async () => {
    await cutOff('claim_store_outcome', 1, async (dibs) => {
      expect(await dibs.onceDetailed(at, async () => 1)).toMatchObject({ value: 1, replayed: false })
    })
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ status: 'active' })
  })

  it('of a step, or a release: each takes effect once', async () => {
    let done = 0
    await cutOff('claim_record_step', 1, async (dibs) => {
      expect(await dibs.once(at, (claim) => claim.step('a', () => ++done))).toBe(1)
    })
    expect(done).toBe(1)
    await cutOff('claim_release', 1, async (dibs) => {
      const failed = dibs.once({ ...at, key: 'other' }, () => Promise.reject(new TransientError('not now')))
      await expect(failed).rejects.toThrow('not now')
    })
    expect(await fixture.dibs.claims.get({ ...address, key: 'other' })).toMatchObject({ held: 'released' })
  })

  it('when the outcome cannot be stored the claim is not released', async () => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const done = dibs.once(at, async () => {
          proxy.inject({ kind: 'cut', when: 'before', statement: 'claim_store_outcome', times: 'always' })
          return 1
        })
        const error = await done.catch((reason) => reason)
        expect(error).toBeInstanceOf(OutcomeNotStoredError)
        expect(error).toMatchObject({ retryable: true, id: (await fixture.dibs.claims.get(address))?.id })
      },
      { connectionString: proxy.url },
    )
    await expect(fixture.dibs.once(at, async () => 2)).rejects.toThrow(InProgressError)
  })
})
