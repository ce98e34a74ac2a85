import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url, viaPgBouncer, withPool } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { Dibs } from '../dibs.js'
import {
  BusinessRuleError,
  BusyError,
  CommitOutcomeUnknownError,
  ConflictError,
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
  InvalidOutcomeError,
  NestedTransactionError,
  NotInTransactionError,
  PermanentError,
  RolledBackError,
  StoredValueError,
  TransientError,
} from '../errors.js'
import type { Tx } from '../postgres/executor.js'
import { countTraffic } from '../testing/count-traffic.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import type { StandardSchema } from './standard-schema.js'

const fixture = openClaims()
const at = { scope: 'orders', key: 'k' }
let runs = 0

/** Writes a line, and answers with the number of its run. */
const write =
  (name: string) =>
  async (tx: Tx): Promise<{ run: number }> => {
    await tx.query(`insert into ${fixture.log} (name) values ($1)`, [name])
    return { run: ++runs }
  }

/** A call that has made its claim and goes on when told to. */
function startSlowly(spec: object = {}) {
  const claimed = deferred()
  const goOn = deferred()
  const ended = fixture.dibs.once({ ...at, ...spec }, async (tx) => {
    const value = await write('slow')(tx)
    claimed.resolve()
    await goOn.promise
    return value
  })
  return { claimed: claimed.promise, goOn: goOn.resolve, ended }
}

/** A transaction of the caller's own, on a plain client. */
async function inTransaction<T>(
  fn: (client: pg.PoolClient) => Promise<T>,
  { last = 'commit', isolation = 'read committed' } = {},
): Promise<T> {
  const client = await fixture.pool.connect()
  try {
    await client.query(`begin isolation level ${isolation}`)
    const value = await fn(client)
    await client.query(last)
    return value
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

async function waiters(): Promise<number> {
  const { rows } = await fixture.pool.query(
    `select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and query like $1`,
    [`%${fixture.schema.name}%`],
  )
  return rows[0].n
}

describe('once, alone', () => {
  it('runs once and replays the same answer', async () => {
    const first = await fixture.dibs.onceDetailed(at, write('a'))
    const second = await fixture.dibs.onceDetailed(at, write('b'))
    expect(first).toMatchObject({ replayed: false, attempt: 1 })
    expect(second).toEqual({ ...first, replayed: true })
    expect(Math.abs(first.completedAt.getTime() - Date.now())).toBeLessThan(60_000)
    expect(await fixture.logged()).toEqual(['a'])
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
  })

  it('needs two round trips around the function, and one for a replay', async () => {
    await fixture.dibs.once({ ...at, key: 'warm' }, async () => 1)
    const first = await countTraffic(fixture.pool, () => fixture.dibs.once(at, async () => 1))
    expect(first).toMatchObject({ roundTrips: 2, commits: 1 })
    const replay = await countTraffic(fixture.pool, () => fixture.dibs.once(at, async () => 2))
    // The second is the ROLLBACK of a transaction that has done nothing; see the next test.
    expect(replay).toMatchObject({ value: 1, roundTrips: 2, commits: 0 })
  })

  it('does not let a replay wait for the end of its transaction', async () => {
    const delayMs = 150
    await fixture.dibs.once(at, async () => 1)
    await using proxy = await PgProxy.start({ url })
    await withPool(
      async (slow) => {
        const dibs = await Dibs.open({
          pool: slow,
          schema: fixture.schema.name,
          migrate: 'off',
          listen: false,
          prepared: false,
        })
        await slow.query('select 1')
        proxy.inject({ kind: 'latency', ms: delayMs, direction: 'toClient' })
        const startedAt = performance.now()
        expect(await dibs.once(at, async () => 2)).toBe(1)
        const tookMs = performance.now() - startedAt
        expect(tookMs).toBeGreaterThan(delayMs * 0.9)
        expect(tookMs).toBeLessThan(delayMs * 1.9)
        await dibs.close()
      },
      { connectionString: proxy.url, max: 1 },
    )
  })

  it('repeats nothing when the answer to COMMIT is lost, and says what was stored', async () => {
    await using proxy = await PgProxy.start({ url })
    await withPool(
      async (cut) => {
        const dibs = await Dibs.open({
          pool: cut,
          schema: fixture.schema.name,
          migrate: 'off',
          listen: false,
          prepared: false,
        })
        const result = await dibs.onceDetailed(at, async (tx) => {
          proxy.inject({ kind: 'cut', when: 'after', statement: '; commit' })
          return write('a')(tx)
        })
        expect(result.replayed).toBe(false)
        expect(await fixture.logged()).toEqual(['a'])
        await dibs.close()
      },
      { connectionString: proxy.url },
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
      /^Waited \d+ ms for another caller that works on key "k" in scope "orders" and did not get it/,
    )
    first.goOn()
    await first.ended
  })

  it('is InProgressError at once without a wait', async () => {
    const first = startSlowly()
    await first.claimed
    const startedAt = performance.now()
    const error = await fixture.dibs.once({ ...at, wait: false }, write('second')).catch((reason) => reason)
    expect(performance.now() - startedAt).toBeLessThan(1_000)
    expect(error).toBeInstanceOf(InProgressError)
    expect(error).toMatchObject({ status: 409, retryable: true, retryAfterMs: 1_000, id: undefined })
    first.goOn()
    await first.ended
  })

  it('compares fingerprints, whatever the order of fields', async () => {
    await fixture.dibs.once({ ...at, fingerprint: { a: 1, b: [{ c: 2, d: 3 }] } }, write('a'))
    await fixture.dibs.once({ ...at, fingerprint: { b: [{ d: 3, c: 2 }], a: 1 } }, write('b'))
    await fixture.dibs.once(at, write('c')) // none given: not compared
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
      await fixture.dibs.once({ ...spec, wait: false }, write('x')).catch(() => {})
      const second = fixture.other.once(spec, write('x'))
      await until(async () => (await waiters()) === 1, 'the second caller to wait')
      const noticed = performance.now() + 40
      await until(() => performance.now() > noticed, 'a wait worth mentioning')
      first.goOn()
      await second
      await fixture.dibs.once({ ...spec, fingerprint: 2 }, write('x')).catch(() => {})
    })
    expect(events.map(([name]) => name)).toEqual([
      'dibs:once.conflict',
      ...['dibs:once.waited', 'dibs:once.replayed', 'dibs:once.mismatch'],
    ])
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
    await withPool(
      async (pool) => {
        const dibs = await Dibs.open({
          pool,
          schema: fixture.schema.name,
          migrate: 'off',
          listen: false,
          prepared: false,
        })
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
        await dibs.close()
      },
      { max: 2 },
    )
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
  it('as a whole, also where one after the other gives up', async () => {
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
      await tx.query("set local statement_timeout = '300ms'")
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
    const late = fixture.other.once({ ...at, deadlineMs: 400 }, write('x'))
    await expect(late).rejects.toThrow(BusyError)
    first.goOn()
    await first.ended
  })
})

describe('a lost answer to COMMIT', () => {
  const cutOff = async (run: (dibs: Dibs, proxy: PgProxy) => Promise<unknown>): Promise<void> => {
    await using proxy = await PgProxy.start({ url })
    await withPool(
      async (pool) => {
        const dibs = await Dibs.open({
          pool,
          schema: fixture.schema.name,
          migrate: 'off',
          listen: false,
          prepared: false,
        })
        await run(dibs, proxy)
        await dibs.close()
      },
      { connectionString: proxy.url },
    )
  }

  it('is known to be its own also after a takeover, and what was left for after it is done once', async () => {
    await inTransaction((tx) =>
      fixture.dibs.once({ ...at, tx }, () => Promise.reject(new Error('no'))).catch(() => {}),
    )
    let after = 0
    await cutOff(async (dibs, proxy) => {
      proxy.inject({ kind: 'cut', when: 'after', statement: '; commit' })
      const result = await dibs.onceDetailed(at, async (tx) => {
        tx.afterCommit(() => void after++)
        return write('a')(tx)
      })
      expect(result).toMatchObject({ replayed: false, attempt: 2 })
    })
    expect(after).toBe(1)
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('of a final error is that error', async () => {
    class Declined extends PermanentError {}
    await cutOff(async (dibs, proxy) => {
      proxy.inject({ kind: 'cut', when: 'after', statement: '; commit' })
      await expect(dibs.once(at, () => Promise.reject(new Declined('no')))).rejects.toThrow(Declined)
    })
  })

  it('stays unknown if the server stays away', async () => {
    await cutOff(async (dibs, proxy) => {
      const cut = proxy.inject({ kind: 'cut', when: 'after', statement: '; commit' })
      void cut.happened.then(() => proxy.inject({ kind: 'refuse' }))
      await expect(dibs.once(at, write('a'))).rejects.toThrow(CommitOutcomeUnknownError)
    })
    expect(await fixture.dibs.claims.get(at)).toMatchObject({ status: 'active' })
  })
})

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
      await expect(fixture.dibs.once({ ...at, tx, wait: false }, write('x'))).rejects.toThrow(InProgressError)
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
            await fixture.pool.query('select 1').then(() => apart({ ...at, key: 'late' }, 'winner'))
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

/** Outside of the transaction that surrounds it. */
async function apart(spec: { scope: string; key: string }, name: string): Promise<void> {
  const dibs = await Dibs.open({
    pool: fixture.pool,
    schema: fixture.schema.name,
    migrate: 'off',
    listen: false,
    prepared: !viaPgBouncer,
  })
  await dibs.once(spec, write(name))
  await dibs.close()
}

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

describe('bad input is refused before anything is sent', () => {
  const bad: [string, object, string][] = [
    ['an empty key', { key: '' }, '`key` must not be empty'],
    ['a huge key', { key: 'x'.repeat(513) }, '`key` must be at most 512 bytes'],
    ['NUL in a key', { key: 'a\0b' }, '`key` must not hold a NUL'],
    ['half a surrogate pair', { key: 'a\ud800' }, '`key` must not hold half of a surrogate pair'],
    ['a number as key', { key: 7 }, '`key` must be a text, not a number'],
    ['no scope', { scope: undefined }, '`scope` must be a text, not undefined'],
    ['a scope of ours', { scope: ':charge' }, '`scope` must not begin with ":"'],
    ['an empty part of a scope', { scope: ['a', ''] }, '`scope` must not have an empty text among them'],
    ['NaN in a scope', { scope: ['a', Number.NaN] }, '`scope` must be texts or whole numbers, not NaN'],
    ['no part of a scope', { scope: [] }, '`scope` must not be empty'],
    ['a negative wait', { waitMs: -1 }, '`waitMs` must be a whole number of milliseconds from 0'],
    ['a wait that contradicts', { wait: false, waitMs: 5 }, '`waitMs` contradicts'],
    ['a negative time to keep', { keepMs: -5 }, '`keepMs` must be'],
    ['a fraction of a millisecond', { keepMs: 0.5 }, '`keepMs` must be'],
    [
      'a fingerprint that is no JSON',
      { fingerprint: { n: 1n } },
      '`fingerprint` must be JSON, and holds a bigint at `n`',
    ],
    ['NUL in a fingerprint', { fingerprint: 'a\0' }, '`fingerprint` must not hold a NUL'],
    ['a misspelled option', { fingerPrint: 1 }, '`fingerPrint` is no option here; there are scope, key'],
    ['an option of the other mode', { leaseMs: 1_000 }, '`leaseMs` is no option here'],
    ['another mode', { mode: 'safe' }, "`mode` must be 'joined' or 'leased'"],
    [
      'a lease that is too short',
      { mode: 'leased', leaseMs: 50 },
      '`leaseMs` must be a whole number of milliseconds from 100',
    ],
    ['no attempts', { mode: 'leased', maxAttempts: 0 }, '`maxAttempts` must be'],
    [
      'another policy',
      { mode: 'leased', onAmbiguous: 'never' },
      "`onAmbiguous` must be 'retry', 'hold' or a function",
    ],
    ['what is no schema', { result: {} }, '`result` must be a Standard Schema'],
    ['a rule that is no function', { isTerminal: true }, '`isTerminal` must be a function'],
  ]
  it.each(bad)('%s', async (_, change, message) => {
    const { value, roundTrips } = await countTraffic(fixture.pool, () =>
      fixture.dibs.once({ ...at, ...change } as never, async () => 1).catch((error) => error),
    )
    expect(value).toBeInstanceOf(InvalidInputError)
    expect(value.message).toContain(message)
    expect(roundTrips).toBe(0)
  })

  const values: [string, unknown, string][] = [
    ['a bigint', { n: 1n }, 'must be JSON, and holds a bigint at `n`'],
    ['NaN', [Number.NaN], 'must be JSON, and holds NaN at `0`'],
    ['a function', () => {}, 'must be JSON, and holds a function'],
    ['a Map', { m: new Map() }, 'must be JSON, and holds an object of the class Map at `m`'],
    ['a NUL', { t: 'a\0' }, 'must not hold a NUL character'],
    ['half a surrogate pair', ['\ud800'], 'must not hold half of a surrogate pair'],
    ['too much', 'x'.repeat(1_048_577), 'must be at most 1048576 bytes as JSON, and is 1048579'],
    ['a depth without end', deep(600), 'must not be nested deeper than 500 levels'],
  ]
  it.each(values)('an outcome that is %s leaves nothing behind', async (_, value, message) => {
    const failed = fixture.dibs.once(at, async (tx) => {
      await write('a')(tx)
      return value
    })
    await expect(failed).rejects.toThrow(InvalidOutcomeError)
    await expect(failed).rejects.toThrow(`\`outcome\` ${message}`)
    expect(await fixture.logged()).toEqual([])
    expect(await fixture.dibs.claims.get(at)).toBeUndefined()
  })

  it('but a backslash before u0000 is only text', async () => {
    expect(await fixture.dibs.once(at, async () => '\\u0000 \\ud800')).toBe('\\u0000 \\ud800')
  })

  it('a circle', async () => {
    const circle: Record<string, unknown> = {}
    circle.self = circle
    await expect(fixture.dibs.once(at, async () => circle as never)).rejects.toThrow(
      '`outcome` must be JSON: Converting circular',
    )
  })
})

function deep(levels: number): unknown {
  let value: unknown = 1
  for (let n = 0; n < levels; n++) value = [value]
  return value
}
