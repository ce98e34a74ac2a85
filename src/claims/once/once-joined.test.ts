import { describe, expect, it } from 'vitest'
import { callersOf } from '../../../test/claims/callers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { throughPool, until, url, viaPgBouncer, withPool } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { realTime } from '../../../test/real-time.js'
import { Dibs } from '../../dibs.js'
import {
  BusinessRuleError,
  BusyError,
  CommitOutcomeUnknownError,
  ConflictError,
  FingerprintMismatchError,
  InProgressError,
  NestedTransactionError,
  PermanentError,
  RolledBackError,
  StoredValueError,
  TransientError,
} from '../../errors.js'
import type { StandardSchema } from '../../postgres/standard-schema.js'
import { countTraffic } from '../../testing/count-traffic.js'
import type { Injection } from '../../testing/proxy/fault.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'
import { createTestSchema } from '../../testing/test-schema.js'
import { fingerprintOf } from './fingerprint.js'

const fixture = openClaims()
const at = { scope: 'orders', key: 'k' }
const { write, startSlowly, inTransaction, waiters } = callersOf(fixture, at)
/** The message that ends a transaction. */
const LAST = '/\\bcommit$/'

describe('once, alone', () => {
  it('runs once and replays the same answer', async () => {
    const first = await fixture.dibs.onceDetailed(at, write('a'))
    const second = await fixture.dibs.onceDetailed(at, write('b'))
    expect(first).toMatchObject({ replayed: false, attempt: 1 })
    expect(second).toEqual({ ...first, replayed: true })
    expect(Math.abs(first.completedAt.getTime() - Date.now())).toBeLessThan(60_000)
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('knows a request in flight by its schema, too', async () => {
    const other = await createTestSchema(fixture.pool)
    await using dibs = await Dibs.open({ pool: fixture.pool, schema: other.name, ...throughPool })
    const entered = [deferred(), deferred()] as const
    const goOn = deferred()
    const work = (n: 0 | 1) => async () => {
      entered[n].resolve()
      await goOn.promise
    }
    // The first call waits, so it announces nothing. The second announces another payload.
    const here = fixture.dibs.once({ ...at, fingerprint: 1 }, work(0))
    await entered[0].promise
    const there = dibs.once({ ...at, fingerprint: 2, waitMs: 0 }, work(1))
    await entered[1].promise
    const same = fixture.other.once({ ...at, fingerprint: 1, waitMs: 0 }, async () => {})
    await expect(same).rejects.toThrow(InProgressError)
    const another = fixture.other.once({ ...at, fingerprint: 2, waitMs: 0 }, async () => {})
    await expect(another).rejects.toThrow(InProgressError) // no fingerprint is announced
    goOn.resolve()
    await Promise.all([here, there])
    await other.drop()
  })

  it('those who look whose request is in flight are not in the way of each other', async () => {
    const first = startSlowly({ fingerprint: 1 }) // the call waits, so it announces nothing
    await first.claimed
    await inTransaction(
      async (tx) => {
        const { rows } = await tx.query(
          `select ${fixture.schema.name}.claim_begin_announced('orders', 'k', 'id', $1, null, 10) as result`,
          [fingerprintOf('fingerprint', 1)],
        )
        expect(rows).toEqual([{ result: { state: 'busy' } }])
        const second = fixture.other.once({ ...at, fingerprint: 1, waitMs: 0 }, write('x'))
        await expect(second).rejects.toThrow(InProgressError)
      },
      { last: 'rollback' },
    )
    first.goOn()
    await first.ended
  })

  it('tells keys, and scopes, apart', async () => {
    const { dibs } = fixture
    await dibs.once({ scope: ['a', 'b:c'], key: 'k' }, write('1'))
    await dibs.once({ scope: ['a:b', 'c'], key: 'k' }, write('2'))
    await dibs.once({ scope: 'a:b:c', key: 'k' }, write('3'))
    await dibs.once({ scope: 'a:b:c', key: 'K' }, write('4'))
    await dibs.once({ scope: ['a', 'b', 'c'], key: 'k' }, write('5')) // the same as the third
    expect(await fixture.logged()).toEqual(['1', '2', '3', '4'])
  })

  it.each([false, true])('takes any text as it is (standard_conforming_strings off: %s)', async (isOff) => {
    const strange = `it's "so" \\' \\\\ $1 $2 $$ {schema} -- /* ; select 1; \\u0041 ü 漢 😀`
    await withPool(
      async (pool) => {
        if (isOff) pool.on('connect', (client) => void client.query('set standard_conforming_strings = off'))
        const dibs = await Dibs.open({
          pool,
          schema: fixture.schema.name,
          migrate: 'off',
          listen: false,
          prepared: false,
        })
        const spec = { scope: [strange, isOff ? 1 : 2], key: strange, fingerprint: strange }
        expect(await dibs.once(spec, async () => ({ [strange]: strange }))).toEqual({ [strange]: strange })
        expect(await fixture.dibs.once(spec, async () => 'other')).toEqual({ [strange]: strange })
        expect(await fixture.dibs.claims.get(spec)).toMatchObject({ key: strange })
        await dibs.close()
      },
      { max: 1 },
    )
  })

  it('gives the first caller what later ones get, byte for byte', async () => {
    const made = { z: 1, a: { when: new Date(0), skipped: undefined }, list: [1.5, 'ü\\\'"', null] }
    const first = await fixture.dibs.once(at, async () => made)
    const second = await fixture.dibs.once(at, async () => made)
    expect(JSON.stringify(first)).toBe(JSON.stringify(made))
    expect(JSON.stringify(second)).toBe(JSON.stringify(made))
    expect(first.a.when satisfies string).toBe('1970-01-01T00:00:00.000Z')
  })

  it.each([[undefined], [null], [0], [''], ['null'], [false], [[]]])(
    'keeps %j as an answer',
    async (value) => {
      expect(await fixture.dibs.once(at, async () => value)).toEqual(value)
      expect(await fixture.dibs.once(at, async () => 'other')).toEqual(value)
    },
  )

  it('rolls everything back and forgets the claim when the function fails', async () => {
    const fail = fixture.dibs.once(at, async (tx) => {
      await write('a')(tx)
      throw new TransientError('not now')
    })
    await expect(fail).rejects.toThrow('not now')
    expect(await fixture.logged()).toEqual([])
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
    expect(await fixture.dibs.onceDetailed(at, write('b'))).toMatchObject({ replayed: false, attempt: 1 })
  })

  it.each([
    ['a plain error', new Error('boom')],
    ['a bug', new TypeError('boom')],
    ['what is no error', 'boom'],
  ])('does not store %s', async (_, thrown) => {
    await expect(fixture.dibs.once(at, () => Promise.reject(thrown))).rejects.toBe(thrown)
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
  })

  it('stores a terminal error without the writes before it, rethrows it, and replays it', async () => {
    const sold = new BusinessRuleError('sold out', 'sold-out')
    const first = fixture.dibs.once(at, async (tx) => {
      await write('a')(tx)
      tx.afterCommit(() => write('after')(fixture.pool as never).then(() => {}))
      throw sold
    })
    await expect(first).rejects.toBe(sold)
    expect(await fixture.logged()).toEqual([])
    const replay = await fixture.dibs.once(at, write('b')).catch((error) => error)
    expect(replay).toBeInstanceOf(BusinessRuleError)
    expect(replay).toMatchObject({ message: 'sold out', rule: 'sold-out', status: 422 })
    expect(await fixture.dibs.claims.get(at)).toMatchObject({
      status: 'failed',
      outcome: { message: 'sold out' },
    })
  })

  it('stores a terminal error also after a statement was refused', async () => {
    const first = fixture.dibs.once(at, async (tx) => {
      await write('a')(tx)
      await tx.query('select 1 / 0').catch(() => {})
      throw new PermanentError('no such account')
    })
    await expect(first).rejects.toThrow('no such account')
    await expect(fixture.dibs.once(at, write('b'))).rejects.toThrow(PermanentError)
    expect(await fixture.logged()).toEqual([])
  })

  it('takes the rule of the caller for which errors are terminal', async () => {
    class Declined extends Error {
      override name = 'Declined'
      code = 'insufficient_funds'
    }
    const spec = { ...at, isTerminal: (error: unknown) => error instanceof Declined }
    await expect(fixture.dibs.once(spec, () => Promise.reject(new Declined('no money')))).rejects.toThrow(
      Declined,
    )
    const replay = await fixture.dibs.once(spec, write('b')).catch((error) => error)
    expect(replay).toBeInstanceOf(PermanentError)
    expect(replay).toMatchObject({
      replayed: true,
      message: 'no money',
      cause: { name: 'Declined', code: 'insufficient_funds' },
    })
  })

  it('keeps status and fields of a final error', async () => {
    class NotFound extends Error {
      status = 404
      details = { id: 7 }
    }
    class TooMany extends BusinessRuleError {
      readonly left = 3
    }
    const isTerminal = (error: unknown): boolean => error instanceof NotFound
    await fixture.dibs.once({ ...at, isTerminal }, () => Promise.reject(new NotFound('gone'))).catch(() => {})
    const replay = await fixture.dibs.once(at, write('b')).catch((error) => error)
    expect(replay).toMatchObject({
      status: 404,
      details: { id: 7 },
      replayed: true,
      cause: { name: 'NotFound' },
    })
    const other = { ...at, key: 'other' }
    await fixture.dibs.once(other, () => Promise.reject(new TooMany('too many', 'limit'))).catch(() => {})
    const refused = await fixture.dibs.once(other, write('b')).catch((error) => error)
    expect(refused).toBeInstanceOf(BusinessRuleError)
    expect(refused).toMatchObject({ status: 422, rule: 'limit', left: 3, retryable: false })
  })

  it('does not take a statement that failed, and was not minded, for success', async () => {
    const dropped = fixture.dibs.once(at, async (tx) => {
      await tx.query('select 1 / 0').catch(() => {})
    })
    await expect(dropped).rejects.toThrow(RolledBackError)
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
  })

  it('repeats the function after a conflict', async () => {
    let tries = 0
    const value = await fixture.dibs.once(at, async (tx) => {
      await write(`try ${++tries}`)(tx)
      if (tries < 3) throw new ConflictError({ subject: 'a row' })
      return tries
    })
    expect(value).toBe(3)
    expect(await fixture.logged()).toEqual(['try 3'])
  })

  it('does what was left for after the commit, and only once', async () => {
    const after: string[] = []
    const run = () =>
      fixture.dibs.once(at, async (tx) => {
        tx.afterCommit(() => void after.push('done'))
      })
    await run()
    await run()
    expect(after).toEqual(['done'])
  })

  it('refuses to begin inside another transaction without being given it', async () => {
    const nested = fixture.dibs.transaction(() => fixture.dibs.once(at, write('a')))
    await expect(nested).rejects.toThrow(NestedTransactionError)
    await expect(nested).rejects.toThrow('Give it that transaction: dibs.once({ …, tx }, …).')
  })

  it('needs two round trips around the function, and one for a replay', async () => {
    await fixture.dibs.once({ ...at, key: 'warm' }, async () => 1)
    const first = await countTraffic(fixture.pool, () => fixture.dibs.once(at, async () => 1))
    expect(first).toMatchObject({ roundTrips: 2, commits: 1 })
    const replay = await countTraffic(fixture.pool, () => fixture.dibs.once(at, async () => 2))
    // The second is the ROLLBACK of a transaction that has done nothing; see the next test.
    expect(replay).toMatchObject({ value: 1, roundTrips: 2, commits: 0 })
  })

  it('does not let a replay wait for the end of its transaction', realTime, async () => {
    const delayMs = 1_000
    await fixture.dibs.once(at, async () => 1)
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs, slow) => {
        await slow.query('select 1')
        proxy.inject({ kind: 'latency', delayMs, direction: 'toClient' })
        const startedAt = performance.now()
        expect(await dibs.once(at, async () => 2)).toBe(1)
        const tookMs = performance.now() - startedAt
        expect(tookMs).toBeGreaterThan(delayMs * 0.9)
        expect(tookMs).toBeLessThan(delayMs * 1.9)
      },
      { connectionString: proxy.url, max: 1 },
    )
  })
})

describe('two callers with the same key', () => {
  it('lets the second wait and replay', async () => {
    const first = startSlowly()
    await first.claimed
    const second = fixture.other.onceDetailed(at, write('second'))
    await until(async () => (await waiters()) === 1, 'the second caller to wait')
    first.goOn()
    expect(await second).toMatchObject({ replayed: true, value: await first.ended })
    expect(await fixture.logged()).toEqual(['slow'])
  })

  it('lets the second run if the first rolls back', async () => {
    const claimed = deferred()
    const goOn = deferred()
    const first = fixture.dibs.once(at, async () => {
      claimed.resolve()
      await goOn.promise
      throw new Error('rolled back')
    })
    first.catch(() => {})
    await claimed.promise
    const second = fixture.other.onceDetailed(at, write('second'))
    await until(async () => (await waiters()) === 1, 'the second caller to wait')
    goOn.resolve()
    await expect(first).rejects.toThrow('rolled back')
    expect(await second).toMatchObject({ replayed: false })
    expect(await fixture.logged()).toEqual(['second'])
  })

  it('is BusyError when the wait ends', async () => {
    const first = startSlowly()
    await first.claimed
    const error = await fixture.dibs.once({ ...at, waitMs: 60 }, write('second')).catch((reason) => reason)
    expect(error).toBeInstanceOf(BusyError)
    expect(error.message).toMatch(
      /^Waited \d+ ms for another caller that works on key "k" in scope "orders"\./,
    )
    first.goOn()
    await first.ended
  })

  it('is InProgressError at once without a wait', realTime, async () => {
    const first = startSlowly()
    await first.claimed
    const startedAt = performance.now()
    const error = await fixture.dibs.once({ ...at, waitMs: 0 }, write('second')).catch((reason) => reason)
    expect(performance.now() - startedAt).toBeLessThan(3_000)
    expect(error).toBeInstanceOf(InProgressError)
    expect(error).toMatchObject({ status: 409, retryable: true, retryAfterMs: 1_000, id: undefined })
    first.goOn()
    await first.ended
  })

  it('compares fingerprints, whatever the order of fields', async () => {
    await fixture.dibs.once({ ...at, fingerprint: { a: 1, b: [{ c: 2, d: 3 }] } }, write('a'))
    await fixture.dibs.once({ ...at, fingerprint: { b: [{ d: 3, c: 2 }], a: 1 } }, write('b'))
    await fixture.dibs.once(at, write('c')) // no fingerprint, so none is compared
    const other = fixture.dibs.once({ ...at, fingerprint: { a: 1, b: [{ c: 2, d: 4 }] } }, write('d'))
    await expect(other).rejects.toThrow(FingerprintMismatchError)
    await expect(other).rejects.toMatchObject({ status: 422, id: (await fixture.dibs.claims.get(at))?.id })
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('tells what happened, without showing the key', async () => {
    const spec = { scope: ['orders', 'tenant-7'], key: 'ann@example.com', requestId: 'r-1', fingerprint: 1 }
    const events = await fixture.eventsOf(async () => {
      const first = startSlowly(spec)
      await first.claimed
      await fixture.dibs.once({ ...spec, waitMs: 0 }, write('x')).catch(() => {})
      const second = fixture.other.once(spec, write('x'))
      await until(async () => (await waiters()) === 1, 'the second caller to wait')
      const noticed = performance.now() + 40
      await until(() => performance.now() > noticed, 'a wait worth mentioning')
      first.goOn()
      await second
      await fixture.dibs.once({ ...spec, fingerprint: 2 }, write('x')).catch(() => {})
    })
    // On a busy machine others may have waited, too.
    const names = events.map(([name]) => name)
    expect(names.filter((name) => name !== 'dibs:once.waited')).toEqual([
      ...['dibs:once.conflict', 'dibs:once.replayed', 'dibs:once.mismatch'],
    ])
    expect(names).toContain('dibs:once.waited')
    for (const [, fields] of events) {
      expect(fields).toMatchObject({
        template: 'orders:*',
        requestId: 'r-1',
        keyHash: expect.stringMatching(/^[0-9a-f]{16}$/),
      })
      expect(JSON.stringify(fields)).not.toMatch(/ann|tenant-7/)
    }
  })
})

describe('calls of one process', () => {
  it('wait for each other without a connection, so that others find one', async () => {
    await fixture.beside(
      async (dibs) => {
        const goOn = deferred()
        const began = deferred()
        const first = dibs.once(at, async () => {
          began.resolve()
          await goOn.promise
          return 1
        })
        await began.promise
        const duplicates = Array.from({ length: 20 }, () => dibs.once(at, async () => 2))
        expect(await dibs.once({ ...at, key: 'unrelated' }, async () => 3)).toBe(3)
        await expect(dibs.once({ ...at, waitMs: 30 }, async () => 2)).rejects.toThrow(BusyError)
        goOn.resolve()
        expect(await Promise.all([first, ...duplicates])).toEqual(Array.from({ length: 21 }, () => 1))
      },
      { max: 2 },
    )
  })

  it('are told an error that is stored side by side', realTime, async () => {
    const fail = () => Promise.reject(new PermanentError('no'))
    await expect(fixture.dibs.once(at, fail)).rejects.toThrow('no')
    const delayMs = 300
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs, pool) => {
        const replay = () => expect(dibs.once(at, fail)).rejects.toThrow('no')
        await Promise.all(Array.from({ length: 12 }, () => pool.query('select 1')))
        proxy.inject({ kind: 'latency', delayMs, direction: 'toClient' })
        const startedAt = performance.now()
        await Promise.all(Array.from({ length: 12 }, replay))
        // The first call, and then all others.
        expect(performance.now() - startedAt).toBeLessThan(9 * delayMs)
      },
      { connectionString: proxy.url, max: 12 },
    )
  })

  it('have their turn in the order in which they came', async () => {
    const order: number[] = []
    const fail = (n: number) =>
      fixture.dibs.once(at, async () => {
        order.push(n)
        if (n < 5) throw new Error('no')
      })
    const numbers = [0, 1, 2, 3, 4, 5, 6, 7]
    await Promise.allSettled(numbers.map(fail))
    expect(order).toEqual([0, 1, 2, 3, 4, 5])
  })

  it('run one after the other while they fail', async () => {
    let running = 0
    let most = 0
    const fail = () =>
      fixture.dibs.once(at, async () => {
        most = Math.max(most, ++running)
        await new Promise((resolve) => setImmediate(resolve))
        running--
        throw new Error('no')
      })
    const ended = await Promise.allSettled(Array.from({ length: 8 }, fail))
    expect(ended.map(({ status }) => status)).toEqual(Array.from({ length: 8 }, () => 'rejected'))
    expect(most).toBe(1)
    expect(await fixture.dibs.once(at, async () => 1)).toBe(1)
  })
})

describe('a wait is bounded', () => {
  it('as a whole, also where it has to begin anew', realTime, async () => {
    const startedAt = performance.now()
    const over = deferred()
    let other: Promise<unknown> | undefined
    const call = fixture.dibs.once({ ...at, waitMs: 1_500 }, async () => {
      other = fixture.other.once({ ...at, waitMs: 10_000 }, () => over.promise)
      await until(async () => (await waiters()) === 1, 'the other to wait')
      await new Promise((resolve) => setTimeout(resolve, 1_200))
      throw new ConflictError({ subject: 'the test' })
    })
    await expect(call).rejects.toThrow(BusyError)
    const tookMs = performance.now() - startedAt
    over.resolve()
    await other
    expect(tookMs).toBeLessThan(2_600) // begun anew with all of its time: 2,700
  })

  it('as a whole, also where one after the other gives up', realTime, async () => {
    let running = true
    const chain = (async () => {
      while (running) await fixture.other.once(at, () => held()).catch(() => {})
    })()
    const held = async (): Promise<never> => {
      await until(async () => (await waiters()) > 0 || !running, 'somebody to wait')
      throw new Error('gives up')
    }
    const startedAt = performance.now()
    const error = await fixture.dibs.once({ ...at, waitMs: 300 }, async () => 'ran').catch((reason) => reason)
    running = false
    await chain
    if (error !== 'ran') expect(error).toBeInstanceOf(BusyError)
    expect(performance.now() - startedAt).toBeLessThan(3_000)
  })

  it("by the caller's statement_timeout, which would abort its transaction", async () => {
    const first = startSlowly()
    await first.claimed
    await inTransaction(async (tx) => {
      await tx.query("set local statement_timeout = '2s'")
      await expect(fixture.other.once({ ...at, tx }, write('x'))).rejects.toThrow(BusyError)
      await write('after')(tx)
    })
    first.goOn()
    await first.ended
    expect(await fixture.logged()).toEqual(['slow', 'after'])
  })

  it('by its own deadline', async () => {
    const first = startSlowly()
    await first.claimed
    const late = fixture.other.once({ ...at, deadlineMs: 2_000 }, write('x'))
    await expect(late).rejects.toThrow(BusyError)
    first.goOn()
    await first.ended
  })
})

describe('a pool that others use too', () => {
  it.each(['discard all', 'deallocate all'])('may be told to %s', async (sql) => {
    await fixture.beside(
      async (dibs, pool) => {
        for (const key of ['a', 'b', 'c']) {
          expect(await dibs.once({ ...at, key }, async () => key)).toBe(key)
          await dibs.kv.get(key)
          await pool.query(sql)
          expect(await dibs.kv.get(key)).toBeUndefined()
          await pool.query(sql)
          expect(await dibs.once({ ...at, key }, async () => 'again')).toBe(key)
        }
      },
      { max: 1 },
    )
  })

  it('fails once if that is done inside of it', async () => {
    await fixture.beside(
      async (dibs) => {
        await dibs.once({ ...at, key: 'before' }, async () => 0)
        const inside = dibs.once(at, (tx) => tx.query('deallocate all').then(() => 1))
        if (viaPgBouncer)
          await inside // nothing has a name there
        else await expect(inside).rejects.toThrow('26000')
        expect(await dibs.once({ ...at, key: 'after' }, async () => 2)).toBe(2)
      },
      { max: 1 },
    )
  })

  it('may be watched by one who adds comments to what has no name', async () => {
    await fixture.beside(
      async (dibs, pool) => {
        const client = await pool.connect()
        const original = client.query.bind(client) as (...given: unknown[]) => unknown
        client.query = ((query: unknown, ...rest: unknown[]) => {
          const isPlain = typeof query === 'object' && query && 'text' in query && !('name' in query)
          return original(isPlain ? { ...query, text: `${query.text} /* traced */` } : query, ...rest)
        }) as never
        client.release()
        expect(await dibs.once(at, async () => 1)).toBe(1)
      },
      { max: 1 },
    )
  })

  it('may have clients that read in binary', async () => {
    await fixture.beside(
      async (dibs) => {
        expect(await dibs.once(at, async () => 1)).toBe(1)
        const leased = dibs.once({ ...at, key: 'leased', mode: 'leased' }, (claim) =>
          claim.step('one', () => 2),
        )
        expect(await leased).toBe(2)
      },
      { binary: true } as never,
    )
  })
})

describe('a lost answer to COMMIT', () => {
  const cutOff = async (
    run: (dibs: Dibs, cut: Injection, proxy: PgProxy) => Promise<unknown>,
  ): Promise<void> => {
    await using proxy = await PgProxy.start({ url })
    await fixture.beside(
      async (dibs) => {
        const cut = proxy.inject({ kind: 'cut', when: 'after', statement: LAST })
        await run(dibs, cut, proxy)
        expect(cut.strikes).toBe(1)
      },
      { connectionString: proxy.url, max: 1 },
    )
  }

  it('stays unknown if the look at it fails in another way', async () => {
    const rename = (from: string, to: string) =>
      fixture.pool.query(`alter function ${fixture.schema.name}.${from} rename to ${to}`)
    await cutOff(async (dibs) => {
      const lost = dibs.once(at, async (tx) => {
        await write('a')(tx)
        await rename('claim_begin_joined', 'claim_begin_gone')
        return 1
      })
      await expect(lost).rejects.toThrow(CommitOutcomeUnknownError)
    }).finally(() => rename('claim_begin_gone', 'claim_begin_joined'))
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('is known to be its own also after a takeover, and what was left for after it is done once', async () => {
    await inTransaction((tx) =>
      fixture.dibs.once({ ...at, tx }, () => Promise.reject(new Error('no'))).catch(() => {}),
    )
    let after = 0
    await cutOff(async (dibs) => {
      const result = await dibs.onceDetailed(at, async (tx) => {
        tx.afterCommit(() => void after++)
        return write('a')(tx)
      })
      expect(result).toMatchObject({ replayed: false, attempt: 2 })
    })
    expect(after).toBe(1)
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('repeats nothing, and says what was stored', async () => {
    await cutOff(async (dibs) => {
      expect(await dibs.onceDetailed(at, write('a'))).toMatchObject({ replayed: false, attempt: 1 })
    })
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('of a final error is that error', async () => {
    class Declined extends PermanentError {}
    await cutOff(async (dibs) => {
      await expect(dibs.once(at, () => Promise.reject(new Declined('no')))).rejects.toThrow(Declined)
    })
  })

  it('stays unknown if the server stays away', async () => {
    await cutOff(async (dibs, cut, proxy) => {
      void cut.happened.then(() => proxy.inject({ kind: 'refuse' }))
      await expect(dibs.once(at, write('a'))).rejects.toThrow(CommitOutcomeUnknownError)
    })
    expect(await fixture.dibs.claims.get(at)).toMatchObject({ status: 'active' })
  })
})

describe('how long an outcome is kept', () => {
  it('is a day, after which the key is new', async () => {
    await fixture.dibs.once({ ...at, fingerprint: 1 }, write('a'))
    await fixture.schema.clock.advance(24 * 3_600_000 - 60_000)
    await fixture.dibs.once({ ...at, fingerprint: 1 }, write('b'))
    await fixture.schema.clock.advance(60_000)
    const anew = await fixture.dibs.onceDetailed({ ...at, fingerprint: 2 }, write('c'))
    expect(anew).toMatchObject({ replayed: false, attempt: 1 })
    expect(await fixture.logged()).toEqual(['a', 'c'])
    await fixture.dibs.once({ ...at, fingerprint: 2 }, write('d'))
    expect(await fixture.logged()).toEqual(['a', 'c'])
  })

  it('is for ever if that is asked for', async () => {
    await fixture.dibs.once({ ...at, keepMs: Number.POSITIVE_INFINITY }, write('a'))
    await fixture.schema.clock.advance(90 * 365 * 24 * 3_600_000)
    await fixture.dibs.once(at, write('b'))
    expect(await fixture.logged()).toEqual(['a'])
    expect(await fixture.dibs.claims.get(at)).not.toHaveProperty('expiresAt')
  })

  it('counts from the end of the work, so that whoever waits for it gets its outcome', async () => {
    const spec = { ...at, keepMs: 60_000 }
    await fixture.dibs.once(spec, async (tx) => {
      await write('long')(tx)
      await fixture.schema.clock.advance(90_000)
    })
    await fixture.dibs.once(spec, write('b'))
    expect(await fixture.logged()).toEqual(['long'])
  })

  it('does not write the index on the expiry a second time for an outcome', async () => {
    const count = async () => {
      const { rows } = await fixture.pool.query(
        `select n_tup_upd::int as updates, n_tup_hot_upd::int as hot from pg_stat_user_tables
         where schemaname = $1 and relname = 'claim'`,
        [fixture.schema.name],
      )
      return rows[0]
    }
    await fixture.pool.query(`vacuum ${fixture.schema.name}.claim`)
    for (let n = 0; n < 5; n++) await fixture.dibs.once({ ...at, key: `${n}` }, async () => 1)
    await until(async () => (await count()).updates >= 5, 'the statistics')
    const { updates, hot } = await count()
    expect(hot / updates).toBeGreaterThan(0.5)
  })
})

describe('a schema for the result', () => {
  const positive: StandardSchema<unknown, { n: number }> = {
    '~standard': {
      version: 1,
      vendor: 'test',
      validate: async (value: unknown) =>
        typeof value === 'number' && value > 0
          ? { value: { n: value } }
          : { issues: [{ message: 'must be positive', path: ['amount', { key: 0 }] }] },
    },
  }

  it('parses the first answer and each replay', async () => {
    const run = () => fixture.dibs.once({ ...at, result: positive }, async () => 7)
    expect((await run()) satisfies { n: number }).toEqual({ n: 7 })
    expect(await run()).toEqual({ n: 7 })
  })

  it('keeps nothing that does not fit it, and says what does not fit any more', async () => {
    const bad = fixture.dibs.once({ ...at, result: positive }, async () => -1)
    await expect(bad).rejects.toThrow(StoredValueError)
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
    await fixture.dibs.once(at, async () => -1)
    await expect(fixture.dibs.once({ ...at, result: positive }, async () => 1)).rejects.toThrow(
      'What is stored for key "k" in scope "orders" does not fit its schema: amount.0: must be positive.',
    )
  })
})
