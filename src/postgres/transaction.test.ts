import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { until, url, viaPgBouncer, withPool } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { realTime } from '../../test/real-time.js'
import {
  BusinessRuleError,
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConflictError,
  ConnectionLostError,
  ConstraintViolationError,
  DatabaseError,
  NestedTransactionError,
  NotInTransactionError,
  PermanentError,
  RolledBackError,
  SnoozeError,
  StatementTimeoutError,
  TransactionEndedError,
  TransientError,
} from '../errors.js'
import { countTraffic } from '../testing/count-traffic.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { Database } from './database.js'
import { type DibsEvents, onEvent } from './events.js'
import { statement } from './statement.js'
import type { Transaction } from './transaction-types.js'

let database: TestDatabase
let account: string

beforeAll(async () => {
  database = await openDatabase()
  account = `"${database.schema}".account`
  await database.pool.query(
    `create table ${account} (id int primary key, balance int not null check (balance >= 0))`,
  )
})

beforeEach(async () => {
  await database.pool.query(`delete from ${account}; insert into ${account} values (1, 50), (2, 50)`)
})

afterAll(() => database.drop())

const balance = async (id: number): Promise<number | undefined> => {
  const { rows } = await database.pool.query(`select balance from ${account} where id = $1`, [id])
  return rows[0]?.balance
}

const setBalance = (tx: Transaction, id: number, to: number) =>
  tx.query(`update ${account} set balance = $2 where id = $1`, [id, to])

const insert = (tx: Transaction, id: number) => tx.query(`insert into ${account} values ($1, 0)`, [id])

describe('commit and rollback', () => {
  it('commits what the function wrote and returns its value', async () => {
    const value = await database.transaction(async (tx) => {
      expect(tx.attempt).toBe(1)
      await setBalance(tx, 1, 7)
      return 'done'
    })
    expect(value).toBe('done')
    expect(await balance(1)).toBe(7)
  })

  it.each([
    new TransientError('later'),
    new PermanentError('never'),
    new BusinessRuleError('sold out', 'sold-out'),
    new SnoozeError(500, 'not there yet'),
    new TypeError('a bug'),
  ])('rolls back and lets $name out as it is, without repeating', async (error) => {
    let runs = 0
    const work = database.transaction(async (tx) => {
      runs++
      await setBalance(tx, 1, 7)
      throw error
    })
    await expect(work).rejects.toBe(error)
    expect(runs).toBe(1)
    expect(await balance(1)).toBe(50)
  })

  it('rolls back, and gives the connection back, whatever is thrown', async () => {
    const pool = new pg.Pool({ connectionString: url, max: 1 })
    const own = new Database(pool, { schema: database.schema, prepared: !viaPgBouncer })
    const { proxy, revoke } = Proxy.revocable({}, {})
    revoke()
    const sly = Object.defineProperty(new Error('sly'), 'severity', {
      get() {
        throw new Error('do not ask')
      },
    })
    for (const thrown of [proxy, sly])
      await own
        .transaction(async (tx) => {
          await setBalance(tx, 1, 7)
          throw thrown
        })
        .then(
          () => expect.unreachable('it did not fail'),
          () => {},
        )
    expect(await own.transaction(async () => 'free')).toBe('free')
    expect(await balance(1)).toBe(50)
    expect(pool.totalCount).toBe(1)
    await pool.end()
  })

  it('costs one round trip for begin and one for commit', async () => {
    const { roundTrips, commits } = await countTraffic(database.pool, () =>
      database.transaction(async (tx) => tx.query('select 1')),
    )
    expect({ roundTrips, commits }).toEqual({ roundTrips: 3, commits: 1 })
  })

  it('runs at the level that was asked for', async () => {
    for (const isolation of ['read committed', 'repeatable read', 'serializable'] as const) {
      const seen = await database.transaction(
        async (tx) => {
          expect(tx.isolation).toBe(isolation)
          const { rows } = await tx.query<{ level: string; ro: string }>(
            "select current_setting('transaction_isolation') as level, current_setting('transaction_read_only') as ro",
          )
          return rows[0]
        },
        { isolation },
      )
      expect(seen).toEqual({ level: isolation, ro: 'off' })
    }
  })
})

describe('conflicts', () => {
  /** Two transactions that each read both rows before either writes: at SERIALIZABLE one must lose. */
  async function writeSkew(
    options: { maxAttempts?: number },
    attempts: number[],
  ): Promise<PromiseSettledResult<unknown>[]> {
    const read = [deferred(), deferred()]
    const withdraw = (me: 0 | 1) =>
      database.transaction(
        async (tx) => {
          attempts.push(tx.attempt)
          const { rows } = await tx.query<{ total: number }>(
            `select sum(balance)::int as total from ${account}`,
          )
          read[me]?.resolve()
          if (tx.attempt === 1) await read[1 - me]?.promise
          if ((rows[0]?.total ?? 0) >= 100) await setBalance(tx, me + 1, 0)
        },
        { isolation: 'serializable', ...options },
      )
    return Promise.allSettled([withdraw(0), withdraw(1)])
  }

  it('repeats the loser of a write skew from its start (40001)', async () => {
    const retried: DibsEvents['dibs:transaction.retried'][] = []
    const stop = onEvent('dibs:transaction.retried', (event) => retried.push(event))
    const attempts: number[] = []
    const results = await writeSkew({}, attempts)
    stop()
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled'])
    // While the winner is in its COMMIT the loser may lose again.
    expect(attempts.toSorted().slice(0, 3)).toEqual([1, 1, 2])
    expect(((await balance(1)) ?? 0) + ((await balance(2)) ?? 0)).toBe(50)
    expect(retried[0]).toMatchObject({ schema: database.schema, attempt: 1, error: { sqlState: '40001' } })
  })

  it('gives up after the given attempts with ConflictError', async () => {
    const results = await writeSkew({ maxAttempts: 1 }, [])
    const reasons = results.filter((result) => result.status === 'rejected').map(({ reason }) => reason)
    expect(reasons).toHaveLength(1)
    expect(reasons[0]).toBeInstanceOf(ConflictError)
    expect(reasons[0]).toMatchObject({
      code: 'DIBS_CONFLICT',
      retryable: true,
      sqlState: '40001',
      attempts: 1,
    })
    expect(reasons[0].message).toContain('Gave up after 1 attempt.')
  })

  it('repeats the victim of a deadlock (40P01)', async () => {
    const locked = [deferred(), deferred()]
    const attempts: number[] = []
    const lockBoth = (me: 0 | 1) =>
      database.transaction(async (tx) => {
        attempts.push(tx.attempt)
        if (tx.attempt === 1) await tx.query("set local deadlock_timeout = '20ms'")
        await setBalance(tx, me + 1, 1)
        locked[me]?.resolve()
        if (tx.attempt === 1) await locked[1 - me]?.promise
        await setBalance(tx, 2 - me, 1)
      })
    await Promise.all([lockBoth(0), lockBoth(1)])
    // The retry may lock its row before the surviving transaction wakes up. Then the two deadlock again.
    expect(attempts.toSorted().slice(0, 3)).toEqual([1, 1, 2])
  })

  it('repeats on a ConflictError of ours or of the caller', async () => {
    const value = await database.transaction(async (tx) => {
      if (tx.attempt < 3) throw new ConflictError({ subject: 'order 7', expected: 1, current: 2 })
      return tx.attempt
    })
    expect(value).toBe(3)
  })

  it('repeats when the conflict was caught inside and COMMIT is answered with ROLLBACK', async () => {
    const value = await database.transaction(async (tx) => {
      if (tx.attempt === 1) await tx.query("do $$ begin raise sqlstate '40001'; end $$").catch(() => {})
      return tx.attempt
    })
    expect(value).toBe(2)
  })

  it('repeats on a conflict that another library has wrapped', async () => {
    const value = await database.transaction(async (tx) => {
      if (tx.attempt === 1) {
        await tx.client.query("do $$ begin raise sqlstate '40P01'; end $$").catch((cause) => {
          throw new Error('Failed query', { cause })
        })
      }
      return tx.attempt
    })
    expect(value).toBe(2)
  })

  it('repeats when it was caught inside and the next statement failed for it', async () => {
    const value = await database.transaction(async (tx) => {
      if (tx.attempt === 1) {
        await tx.query("do $$ begin raise sqlstate '40001'; end $$").catch(() => {})
        await tx.query('select 1')
      }
      return tx.attempt
    })
    expect(value).toBe(2)
  })

  it('repeats when it was dropped inside a savepoint', async () => {
    const value = await database.transaction(async (tx) => {
      await tx.savepoint(async (part) => {
        if (tx.attempt === 1) await part.query("do $$ begin raise sqlstate '40001'; end $$").catch(() => {})
      })
      return tx.attempt
    })
    expect(value).toBe(2)
  })

  it('does not repeat what the caller calls final, whatever its cause', async () => {
    let runs = 0
    const work = database.transaction(async (tx) => {
      runs++
      await tx.query("do $$ begin raise sqlstate '40001'; end $$").catch((cause) => {
        throw new Error('wrapped', { cause: new PermanentError('never', { cause }) })
      })
    })
    await expect(work).rejects.toThrow('wrapped')
    expect(runs).toBe(1)
  })

  it("keeps the caller's own class of conflict when it gives up", async () => {
    class StaleError extends ConflictError {}
    const stale = new StaleError({ subject: 'order 7' })
    await expect(database.transaction(() => Promise.reject(stale), { maxAttempts: 2 })).rejects.toBe(stale)
  })

  it('starts no attempt after the deadline, and says what it met', realTime, async () => {
    const startedAt = performance.now()
    const work = database.transaction(
      async () => {
        throw new ConflictError({ subject: 'order 7', expected: 1, current: 2 })
      },
      { deadlineMs: 500, maxAttempts: 1_000_000 },
    )
    const error = await work.catch((reason) => reason)
    expect(error).toBeInstanceOf(ConflictError)
    expect(error).toMatchObject({ subject: 'order 7', expected: 1, current: 2 })
    expect(error.attempts).toBeGreaterThan(1)
    expect(performance.now() - startedAt).toBeLessThan(5_000)
  })
})

describe('statements that fail', () => {
  it('are ConstraintViolationError with the name of the constraint', async () => {
    const error = await database.transaction((tx) => insert(tx, 1)).catch((reason) => reason)
    expect(error).toBeInstanceOf(ConstraintViolationError)
    expect(error).toMatchObject({
      kind: 'unique',
      constraint: 'account_pkey',
      table: 'account',
      sqlState: '23505',
    })
  })

  it('at COMMIT too, where a deferred constraint is checked', async () => {
    await database.pool.query(
      `create table "${database.schema}".child (id int references ${account} deferrable initially deferred)`,
    )
    const error = await database
      .transaction((tx) => tx.query(`insert into "${database.schema}".child values (99)`))
      .catch((reason) => reason)
    expect(error).toBeInstanceOf(ConstraintViolationError)
    expect(error).toMatchObject({ kind: 'foreign key', constraint: 'child_id_fkey' })
    await database.transaction((tx) => tx.query('select 1')) // the pool is fine
  })

  it('make COMMIT a RolledBackError when their error is dropped', async () => {
    const error = await database
      .transaction(async (tx) => {
        await setBalance(tx, 1, 7)
        await insert(tx, 1).catch(() => {})
      })
      .catch((reason) => reason)
    expect(error).toBeInstanceOf(RolledBackError)
    expect(error.cause).toBeInstanceOf(ConstraintViolationError)
    expect(await balance(1)).toBe(50)
  })

  it('undo only their part inside a savepoint', async () => {
    await database.transaction(async (tx) => {
      await setBalance(tx, 1, 7)
      await expect(
        tx.savepoint(async (part) => {
          await setBalance(part, 2, 7)
          await part.savepoint((inner) => setBalance(inner, 2, 8))
          await insert(part, 1)
        }),
      ).rejects.toThrow(ConstraintViolationError)
      expect(await tx.savepoint(async () => 'fine')).toBe('fine')
    })
    expect([await balance(1), await balance(2)]).toEqual([7, 50])
  })

  it('undo with their savepoint what it wanted done after the commit, and no more', async () => {
    const seen: string[] = []
    await database.transaction(async (tx) => {
      tx.afterCommit(() => void seen.push('before'))
      await tx
        .savepoint(async (part) => {
          part.afterCommit(() => void seen.push('inside'))
          tx.afterCommit(() => void seen.push('meanwhile'))
          await part.savepoint(async (inner) => inner.afterCommit(() => void seen.push('further inside')))
          throw new TransientError('no')
        })
        .catch(() => {})
      await tx.savepoint(async (part) => part.afterCommit(() => void seen.push('kept')))
    })
    expect(seen).toEqual(['before', 'meanwhile', 'kept'])
  })

  it('make the end of a savepoint a RolledBackError when their error is dropped, and the rest goes on', async () => {
    await database.transaction(async (tx) => {
      const work = tx.savepoint(async (part) => {
        await setBalance(part, 2, 7)
        await insert(part, 1).catch(() => {})
      })
      await expect(work).rejects.toMatchObject({ name: 'RolledBackError', part: 'savepoint' })
      await setBalance(tx, 1, 7)
    })
    expect([await balance(1), await balance(2)]).toEqual([7, 50])
  })

  it('cannot take others with them: while a savepoint is open, only its own tx is served', async () => {
    let results: PromiseSettledResult<unknown>[] = []
    await database.transaction(async (tx) => {
      let left: Transaction | undefined
      results = await Promise.allSettled([
        tx.savepoint(async (part) => {
          left = part
          await setBalance(part, 1, 7)
          throw new TransientError('no')
        }),
        tx.savepoint((part) => setBalance(part, 2, 7)),
        setBalance(tx, 2, 8),
      ])
      await expect(left && setBalance(left, 2, 8)).rejects.toMatchObject({ field: 'tx' })
      await setBalance(tx, 2, 9) // and afterwards all is well
    })
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected'])
    expect(results.slice(1)).toMatchObject([{ reason: { field: 'tx' } }, { reason: { field: 'tx' } }])
    expect([await balance(1), await balance(2)]).toEqual([50, 9])
  })

  it('are not kept by a savepoint that nobody awaited', async () => {
    const mayFail = deferred()
    let part: Promise<unknown> | undefined
    const work = database.transaction(async (tx) => {
      const written = deferred()
      part = tx.savepoint(async (inner) => {
        await setBalance(inner, 1, 7)
        written.resolve()
        await mayFail.promise
        throw new TransientError('no')
      })
      part.catch(() => {})
      await written.promise
    })
    await expect(work).rejects.toMatchObject({ code: 'DIBS_NOT_AWAITED', calls: ['tx.savepoint'] })
    mayFail.resolve()
    await expect(part).rejects.toThrow(TransientError)
    expect(await balance(1)).toBe(50)
  })

  it('leave nothing behind on a client that is back in the pool', async () => {
    await withPool(
      async (pool) => {
        const own = await openDatabase({ pool })
        const mayEnd = deferred()
        const inside = deferred()
        let part: Promise<unknown> | undefined
        const work = own.transaction(async (tx) => {
          part = tx.savepoint(async (inner) => {
            await inner.query('select 1')
            inside.resolve()
            await mayEnd.promise
          })
          const failing = inside.promise.then(() => Promise.reject(new TransientError('no')))
          await Promise.all([part, failing])
        })
        await expect(work).rejects.toThrow(TransientError)
        // The next transaction uses the same client, and the old savepoint ends during it.
        const value = await own.transaction(async (tx) => {
          mayEnd.resolve()
          await expect(part).rejects.toThrow(NotInTransactionError)
          await setBalance(tx, 1, 7)
          return 'fine'
        })
        expect(value).toBe('fine')
        expect(await balance(1)).toBe(7)
        await own.drop()
      },
      { max: 1 },
    )
  })

  it('of another server that this one talks to do not pass for a lost connection', async () => {
    await database.transaction(async (tx) => {
      const foreign = tx.savepoint((part) => part.query("do $$ begin raise sqlstate '08006'; end $$"))
      await expect(foreign).rejects.toBeInstanceOf(DatabaseError)
      await setBalance(tx, 1, 7)
    })
    expect(await balance(1)).toBe(7)
  })

  it('are DatabaseError with their SQLSTATE when there is no class of their own', async () => {
    const error = await database
      .transaction((tx) => tx.query('select * from nowhere'))
      .catch((reason) => reason)
    expect(error).toBeInstanceOf(DatabaseError)
    expect(error).toMatchObject({ sqlState: '42P01' })
    expect(error.cause).toBeInstanceOf(Error)
  })
})

describe('the deadline', () => {
  it('cancels a statement that runs into it', async () => {
    const error = await database
      .transaction((tx) => tx.query('select pg_sleep(30)'), { deadlineMs: 1_000 })
      .catch((reason) => reason)
    expect(error).toBeInstanceOf(StatementTimeoutError)
    expect(error).toMatchObject({ sqlState: '57014' })
  })

  it('ends a call soon after it, also when the statement was sent shortly before', realTime, async () => {
    const startedAt = performance.now()
    const work = database.transaction(
      async (tx) => {
        await tx.query('select pg_sleep(0.4)')
        await tx.query('select pg_sleep(30)')
      },
      { deadlineMs: 500 },
    )
    await expect(work).rejects.toThrow(StatementTimeoutError)
    expect(performance.now() - startedAt).toBeLessThan(4_000)
  })

  it('lets nothing be kept after it', async () => {
    const work = database.transaction(
      async (tx) => {
        await setBalance(tx, 1, 7)
        const until = performance.now() + 1_050
        while (performance.now() < until);
      },
      { deadlineMs: 1_000 },
    )
    await expect(work).rejects.toThrow('COMMIT was not sent')
    expect(await balance(1)).toBe(50)
  })

  it('ends a call whose function waits elsewhere', realTime, async () => {
    const startedAt = performance.now()
    const work = database.transaction(() => new Promise(() => {}), { deadlineMs: 50 })
    await expect(work).rejects.toThrow(StatementTimeoutError)
    expect(performance.now() - startedAt).toBeLessThan(3_000)
  })

  it('refuses a statement after it', async () => {
    const error = await database
      .transaction(
        async (tx) => {
          const until = performance.now() + 30
          while (performance.now() < until);
          await tx.query('select 1')
        },
        { deadlineMs: 20 },
      )
      .catch((reason) => reason)
    expect(error).toBeInstanceOf(StatementTimeoutError)
  })

  it('bounds the wait for a connection: BusyError', async () => {
    await withPool(
      async (pool) => {
        const small = await openDatabase({ pool })
        const held = await pool.connect()
        const error = await small.transaction(async () => 1, { deadlineMs: 50 }).catch((reason) => reason)
        expect(error).toBeInstanceOf(BusyError)
        expect(error).toMatchObject({ retryable: true, status: 503 })
        expect(error.message).toContain('max 1, all in use')
        held.release()
        expect(await small.transaction(async () => 'free again')).toBe('free again') // the late client went back
        await small.drop()
      },
      { max: 1 },
    )
  })

  it('can be absent', async () => {
    const seen = await database.transaction(
      async (tx) => (await tx.query('show statement_timeout')).rows[0],
      {
        deadlineMs: Number.POSITIVE_INFINITY,
      },
    )
    expect(seen).toEqual({ statement_timeout: '0' })
  })
})

describe('afterCommit', () => {
  it('runs in order after the commit, for the attempt that committed alone', async () => {
    const seen: unknown[] = []
    await database.transaction(async (tx) => {
      await setBalance(tx, 1, tx.attempt)
      tx.afterCommit(async () => void seen.push(['first', tx.attempt, await balance(1)]))
      tx.afterCommit(() => void seen.push('second'))
      if (tx.attempt === 1) throw new ConflictError({ subject: 'it' })
    })
    expect(seen).toEqual([['first', 2, 2], 'second'])
  })

  it('does not run after a rollback', async () => {
    let ran = false
    await database
      .transaction(async (tx) => {
        tx.afterCommit(() => {
          ran = true
        })
        throw new TransientError('no')
      })
      .catch(() => {})
    expect(ran).toBe(false)
  })

  it('keeps the commit when it fails, and tells by an event', async () => {
    const failed: DibsEvents['dibs:after-commit.failed'][] = []
    const stop = onEvent('dibs:after-commit.failed', (event) => failed.push(event))
    const boom = new Error('boom')
    let second = false
    const value = await database.transaction(async (tx) => {
      tx.afterCommit(() => {
        throw boom
      })
      tx.afterCommit(() => {
        second = true
      })
      return 'kept'
    })
    stop()
    expect(value).toBe('kept')
    expect(second).toBe(true)
    expect(failed).toEqual([{ ...database.origin, error: boom }])
  })

  it('may start a transaction of its own', async () => {
    let inner = 0
    await database.transaction(async (tx) => {
      tx.afterCommit(async () => {
        inner = await database.transaction(async () => 5)
      })
    })
    expect(inner).toBe(5)
  })
})

describe('misuse', () => {
  it('refuses a transaction inside a transaction', async () => {
    const work = database.transaction(() => database.transaction(async () => 1))
    await expect(work).rejects.toThrow(NestedTransactionError)
  })

  it('allows one inside that of another instance', async () => {
    const other = await openDatabase()
    expect(await database.transaction(() => other.transaction(async () => 'fine'))).toBe('fine')
    await expect(
      database.transaction(() => other.transaction(() => database.transaction(async () => 1))),
    ).rejects.toThrow(NestedTransactionError)
    await other.drop()
  })

  it('allows one in a flow that outlives the first', async () => {
    const ended = deferred()
    let later: Promise<string> | undefined
    await database.transaction(async () => {
      later = ended.promise.then(() => database.transaction(async () => 'fine'))
    })
    ended.resolve()
    expect(await later).toBe('fine')
  })

  it('refuses what is no function', async () => {
    await expect(database.transaction(undefined as never)).rejects.toMatchObject({ field: 'fn' })
    await expect(database.transaction(async (tx) => tx.afterCommit(5 as never))).rejects.toMatchObject({
      field: 'fn',
    })
  })

  it('refuses a tx that has ended', async () => {
    let kept: Transaction | undefined
    await database.transaction(async (tx) => {
      kept = tx
    })
    await expect(kept?.query('select 1')).rejects.toThrow(NotInTransactionError)
    expect(() => kept?.afterCommit(() => {})).toThrow(NotInTransactionError)
  })

  it.each(['commit', ' ROLLBACK', ';end;', 'begin', 'rollback and chain', 'start transaction', 'abort'])(
    'refuses to be sent %j',
    async (text) => {
      const work = database.transaction((tx) => tx.query(text))
      await expect(work).rejects.toMatchObject({ name: 'InvalidInputError', field: 'text', status: 500 })
    },
  )

  it('lets a savepoint of the caller be rolled back to', async () => {
    await database.transaction(async (tx) => {
      await tx.query('savepoint mine')
      await insert(tx, 1).catch(() => {})
      await tx.query('rollback to savepoint mine')
      await setBalance(tx, 1, 7)
    })
    expect(await balance(1)).toBe(7)
  })

  it.each([
    ['and returns', async () => {}],
    ['and meets a conflict', async () => Promise.reject(new ConflictError({ subject: 'it' }))],
    [
      'and goes on',
      async (tx: Transaction) => void (await tx.query('select 1').then(() => tx.query('select 2'))),
    ],
  ])(
    'tells when someone with tx.client has ended the transaction %s, and does not repeat',
    async (_, then) => {
      let runs = 0
      const error = await database
        .transaction(async (tx) => {
          runs++
          await setBalance(tx, 1, 7)
          await tx.client.query('commit')
          await then(tx)
        })
        .catch((reason) => reason)
      expect(error).toBeInstanceOf(TransactionEndedError)
      expect(error.retryable).toBe(false)
      expect(runs).toBe(1)
      expect(await database.transaction(async () => 'healthy')).toBe('healthy')
    },
  )

  it.each(['/* x */ commit and chain', 'select 1; commit; begin', '/* x */ rollback and chain'])(
    'notices %j by the answer, does not go on, and does not repeat',
    async (text) => {
      let runs = 0
      const work = database.transaction(async (tx) => {
        runs++
        await setBalance(tx, 1, 7)
        await tx.query(text)
        await expect(setBalance(tx, 2, 7)).rejects.toThrow(TransactionEndedError)
        throw new ConflictError({ subject: 'it' })
      })
      await expect(work).rejects.toThrow(TransactionEndedError)
      expect(runs).toBe(1)
      expect(await balance(2)).toBe(50)
    },
  )

  it('tells so too when nobody awaited it, and the server is set to be silent', async () => {
    const work = database.transaction(async (tx) => {
      await tx.query('set local client_min_messages = error')
      await setBalance(tx, 1, 7)
      void tx.client.query('rollback')
    })
    await expect(work).rejects.toThrow(TransactionEndedError)
    expect(await balance(1)).toBe(50)
  })

  it('notices it although the statement failed, or the connection broke, afterwards', async () => {
    const failing = database.transaction(async (tx) => {
      await tx.query('select 1; commit; select 1 / 0').catch(() => {})
      await expect(setBalance(tx, 1, 7)).rejects.toThrow(TransactionEndedError)
      throw new ConflictError({ subject: 'it' })
    })
    await expect(failing).rejects.toThrow(TransactionEndedError)
    // Behind PgBouncer a client keeps its connection when that of a transaction which is over breaks.
    if (viaPgBouncer) return
    const broken = database.transaction(async (tx) => {
      const { rows } = await tx.query('select pg_backend_pid() as pid')
      await tx.client.query('commit')
      await database.pool.query('select pg_terminate_backend($1)', [rows[0]?.pid])
      await until(
        () =>
          tx.client.query('select 1').then(
            () => false,
            () => true,
          ),
        'the connection to break',
      )
      throw new ConflictError({ subject: 'it' })
    })
    await expect(broken).rejects.toThrow(TransactionEndedError)
  })

  it.each(['rollback /* x */ to savepoint mine', 'ROLLBACK TO mine; rollback work to savepoint mine'])(
    'takes %j for what it is',
    async (text) => {
      await database.transaction(async (tx) => {
        await tx.query('savepoint mine')
        await tx.client.query(text)
        await setBalance(tx, 1, 7)
      })
      expect(await balance(1)).toBe(7)
    },
  )

  it.each(['/* not rollback to x */ rollback and chain', 'rollback to mine; rollback and chain'])(
    'and %j too',
    async (text) => {
      const work = database.transaction(async (tx) => {
        await tx.query('savepoint mine')
        await tx.client.query(text)
      })
      await expect(work).rejects.toThrow(TransactionEndedError)
    },
  )

  it('names the failure that counts, not one that a savepoint of the caller has undone', async () => {
    let runs = 0
    const work = database.transaction(async (tx) => {
      runs++
      await tx.query('savepoint mine')
      await tx.query("do $$ begin raise sqlstate '40001'; end $$").catch(() => {})
      await tx.query('rollback to savepoint mine')
      await tx.query('select 1 / 0').catch(() => {})
    })
    await expect(work).rejects.toMatchObject({ name: 'RolledBackError', cause: { sqlState: '22012' } })
    expect(runs).toBe(1)
  })

  it('refuses a statement that is no text', async () => {
    const work = database.transaction((tx) => tx.query({ text: 'commit' } as never))
    await expect(work).rejects.toMatchObject({ field: 'text' })
  })

  it('neither fails for a client that someone inside has released, nor takes it from its next holder', async () => {
    await withPool(
      async (pool) => {
        const own = await openDatabase({ pool })
        let next: Promise<pg.PoolClient> | undefined
        const value = await own.transaction(async (tx) => {
          await tx.query('select 1')
          tx.afterCommit(() => {})
          next = pool.connect()
          queueMicrotask(() => tx.client.release())
          return 'kept'
        })
        expect(value).toBe('kept')
        const held = await next
        expect(pool.idleCount).toBe(0) // it is the next one's, and stays so
        held?.release()
        await own.drop()
      },
      { max: 1 },
    )
  })

  it.each([
    [{ maxAttempts: 0 }, 'maxAttempts'],
    [{ maxAttempts: 1.5 }, 'maxAttempts'],
    [{ deadlineMs: 0 }, 'deadlineMs'],
    [{ deadlineMs: Number.NaN }, 'deadlineMs'],
    [{ isolation: 'chaos' as never }, 'isolation'],
  ])('refuses %j', async (options, field) => {
    await expect(database.transaction(async () => 1, options)).rejects.toMatchObject({
      name: 'InvalidInputError',
      field,
    })
  })
})

describe('a connection that breaks inside', () => {
  it('is ConnectionLostError, and does not go back to the pool', async () => {
    await withPool(
      async (pool) => {
        const small = await openDatabase({ pool })
        const discarded: unknown[] = []
        const stop = onEvent('dibs:connection.discarded', ({ error }) => discarded.push(error))
        const error = await small
          .transaction(async (tx) => {
            const { rows } = await tx.query('select pg_backend_pid() as pid')
            await database.pool.query('select pg_terminate_backend($1)', [rows[0]?.pid])
            await tx.query('select 1')
          })
          .catch((reason) => reason)
        stop()
        expect(error).toBeInstanceOf(ConnectionLostError)
        expect(error.retryable).toBe(true)
        expect(discarded).toHaveLength(1)
        expect(await small.transaction(async () => 'healthy')).toBe('healthy')
        await small.drop()
      },
      { max: 1 },
    )
  })

  it('while nothing runs on it is noticed before COMMIT, so the outcome is known', async () => {
    const broken = deferred()
    const error = await database
      .transaction(async (tx) => {
        await setBalance(tx, 1, 7)
        tx.client.once('error', () => broken.resolve())
        const { rows } = await tx.query('select pg_backend_pid() as pid')
        await database.pool.query('select pg_terminate_backend($1)', [rows[0]?.pid])
        await broken.promise
      })
      .catch((reason) => reason)
    expect(error).toBeInstanceOf(ConnectionLostError)
    expect(error.message).toContain('before COMMIT was sent')
    expect(await balance(1)).toBe(50)
  })
})

describe('what is wrong elsewhere', () => {
  it.each([
    Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' }),
    new Error('timeout expired waiting for the bank'),
    Object.assign(new Error('db of another service'), { severity: 'FATAL', code: '57P01' }),
  ])('is no reason to throw a healthy connection away: $message', async (error) => {
    const discarded: unknown[] = []
    const stop = onEvent('dibs:connection.discarded', (event) => {
      if (event.instance === database.origin.instance) discarded.push(event)
    })
    await expect(database.transaction(() => Promise.reject(error))).rejects.toBe(error)
    stop()
    expect(discarded).toEqual([])
  })
})

describe('a connection that someone has left a transaction open on', () => {
  it('is not used', async () => {
    await withPool(
      async (pool) => {
        const own = new Database(pool, { schema: database.schema, prepared: false })
        const leave = async () => {
          const client = await pool.connect()
          await client.query('begin')
          client.release()
        }
        const add = statement(
          `update {schema}.account set balance = $1::text::int where id = 1 returning id::text`,
        )
        await leave()
        expect(await own.send(add, ['7'])).toEqual([{ id: '1' }])
        expect(await balance(1)).toBe(7)
        await leave()
        await own.transaction((tx) => setBalance(tx, 1, 8))
        expect(await balance(1)).toBe(8)
      },
      { max: 1 },
    )
  })
})

describe('close', () => {
  it('takes its connection from a function that does not end', async () => {
    const pool = new pg.Pool({ connectionString: url })
    pool.on('error', () => {})
    const own = new Database(pool, { schema: database.schema, prepared: false })
    const inside = deferred()
    const stuck = own.transaction(
      () => {
        inside.resolve()
        return new Promise(() => {})
      },
      { deadlineMs: Number.POSITIVE_INFINITY },
    )
    const settled = stuck.catch((reason) => reason)
    await inside.promise
    await own.close(50)
    await pool.end()
    expect(await settled).toBeInstanceOf(ClosedError)
  })
})

describe('close after work that has ended', () => {
  it('leaves alone what else is out, such as a hint on its way', async () => {
    await withPool(async (pool) => {
      const own = new Database(pool, { schema: database.schema, prepared: false })
      const mayEnd = deferred()
      const inside = deferred()
      const work = own.transaction(async () => {
        inside.resolve()
        await mayEnd.promise
      })
      await inside.promise
      const beside = own.use(
        async ({ client }) => (await client.query('select pg_sleep(0.2), 7 as n')).rows[0].n,
      )
      const closing = own.close()
      mayEnd.resolve()
      await work
      await closing
      expect(await beside).toBe(7)
    })
  })
})

describe('close of an instance whose work waits for a shared pool', () => {
  it('lets it do nothing afterwards', async () => {
    await withPool(
      async (pool) => {
        const own = new Database(pool, { schema: database.schema, prepared: false })
        const held = await pool.connect()
        const work = own.transaction((tx) => setBalance(tx, 1, 7)).catch((reason) => reason)
        await own.close(20)
        held.release()
        expect(await work).toBeInstanceOf(ClosedError)
        expect(await balance(1)).toBe(50)
      },
      { max: 1 },
    )
  })
})

describe('a network that goes silent', () => {
  it('does not hold a transaction beyond its deadline', async () => {
    await using proxy = await PgProxy.start({ url })
    await withPool(
      async (pool) => {
        const own = new Database(pool, { schema: database.schema, prepared: false })
        await pool.query('select 1')
        const startedAt = performance.now()
        const error = await own
          .transaction(
            async (tx) => {
              await tx.query('select 1')
              proxy.inject({ kind: 'black-hole' })
              await tx.query('select 2')
            },
            { deadlineMs: 1_500 },
          )
          .catch((reason) => reason)
        expect(error).toBeInstanceOf(StatementTimeoutError)
        expect(performance.now() - startedAt).toBeLessThan(10_000)
      },
      { connectionString: proxy.url },
    )
  })

  it('at COMMIT leaves the outcome unknown', async () => {
    await using proxy = await PgProxy.start({ url })
    await withPool(
      async (pool) => {
        const own = new Database(pool, { schema: database.schema, prepared: false })
        await pool.query('select 1')
        const work = own.transaction(
          async (tx) => {
            await tx.query('select 1')
            proxy.inject({ kind: 'black-hole' })
          },
          { deadlineMs: 1_500 },
        )
        await expect(work).rejects.toThrow(CommitOutcomeUnknownError)
      },
      { connectionString: proxy.url },
    )
  })
})

it('keeps nothing alive of the transactions that started it', async () => {
  // Each is started from inside the one before: a flow that outlives its transaction, again and again.
  const ended: WeakRef<object>[] = []
  const done = deferred()
  const start = (): void => {
    const work = database.transaction(async (tx) => {
      ended.push(new WeakRef(tx))
      if (ended.length === 20) done.resolve()
      else setImmediate(start)
    })
    work.catch(() => setImmediate(start)) // it still was inside
  }
  start()
  await done.promise
  setFlagsFromString('--expose-gc')
  const gc: () => void = runInNewContext('gc')
  await until(() => {
    gc()
    return ended.slice(0, 10).every((ref) => ref.deref() === undefined)
  }, 'the first transactions to be collected')
})

it('is told about a server that cannot be reached', async () => {
  const nowhere = new URL(url)
  nowhere.port = '1'
  await withPool(
    async (pool) => {
      const lost = new Database(pool, { schema: 'dibs', prepared: false })
      await expect(lost.transaction(async () => 1)).rejects.toThrow(ConnectionLostError)
    },
    { connectionString: nowhere.href },
  )
})
