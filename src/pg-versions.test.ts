import type { Pool, PoolConfig } from 'pg'
import { afterAll, describe, expect, it } from 'vitest'
import { directUrl, dropSchema, freshName, until } from '../test/database.js'
import { deferred } from '../test/deferred.js'
import { pgVersions } from '../test/pg-versions.js'
import { Dibs } from './dibs.js'
import {
  CommitOutcomeUnknownError,
  NotInTransactionError,
  StatementTimeoutError,
  TransactionEndedError,
} from './errors.js'
import { PgProxy } from './testing/index.js'

const schema = freshName('versions')
afterAll(() => dropSchema(schema))

describe.each(pgVersions)("a user's pool of pg $version", ({ pg }) => {
  /** Runs with a pool of that version, and an instance on it. */
  async function withDibs(
    fn: (dibs: Dibs, pool: Pool) => Promise<void>,
    { prepare, ...config }: PoolConfig & { prepare?: (pool: Pool) => Promise<void> } = {},
  ): Promise<void> {
    const pool = new pg.Pool({ connectionString: directUrl, ...config })
    pool.on('error', () => {})
    await prepare?.(pool)
    const dibs = await Dibs.open({ pool, schema })
    try {
      await fn(dibs, pool)
    } finally {
      await dibs.close()
      await pool.end()
    }
  }

  it('runs transactions, savepoints and retries', () =>
    withDibs(async (dibs, pool) => {
      const table = `"${schema}".${freshName()}`
      await pool.query(`create table ${table} (n int)`)
      const attempts = await dibs.transaction(async (tx) => {
        await tx.query(`insert into ${table} values (1)`)
        if (tx.attempt === 1) await tx.query("do $$ begin raise sqlstate '40001'; end $$")
        await tx.query('savepoint mine')
        await tx.query(`insert into ${table} values (2)`)
        await tx.client.query('rollback /* all of it */ to savepoint mine')
        await tx.savepoint((inner) => inner.query('select 1 / 0')).catch(() => {})
        await tx.query(`insert into ${table} values (3)`)
        return tx.attempt
      })
      expect(attempts).toBe(2)
      const { rows } = await pool.query(`select n from ${table} order by n`)
      expect(rows.map(({ n }) => n)).toEqual([1, 3])
    }))

  it.each(['commit', 'rollback and chain'])('notices that a statement ended the transaction: %s', (text) =>
    withDibs(async (dibs) => {
      const work = dibs.transaction(async (tx) => {
        await tx.client.query(text)
        await tx.query('select 1')
      })
      await expect(work).rejects.toThrow(TransactionEndedError)
      expect(await dibs.transaction(async () => 'healthy')).toBe('healthy')
    }),
  )

  it('does not use a connection on which somebody left a transaction open', () =>
    withDibs(
      async (dibs, pool) => {
        expect(await dibs.transaction(async () => 'healthy')).toBe('healthy')
        await leaveOpen(pool)
        const key = freshName()
        await dibs.kv.set(key, 1)
        expect((await dibs.kv.get(key))?.value).toBe(1)
      },
      { max: 1, prepare: leaveOpen },
    ))

  async function leaveOpen(pool: Pool): Promise<void> {
    const client = await pool.connect()
    await client.query('begin')
    client.release()
  }

  it('joins a transaction of its client, and refuses one that has ended', () =>
    withDibs(async (dibs, pool) => {
      const client = await pool.connect()
      const key = freshName()
      const call = () => dibs.once({ scope: 'orders', key, tx: client }, async () => ({ id: 7 }))
      try {
        await expect(call()).rejects.toThrow(NotInTransactionError)
        await client.query('begin')
        expect(await call()).toEqual({ id: 7 })
        await client.query('rollback')
        await expect(call()).rejects.toThrow(NotInTransactionError)
        await client.query('begin')
        expect(await call()).toEqual({ id: 7 })
        await client.query('commit')
      } finally {
        client.release()
      }
      const again = await dibs.onceDetailed({ scope: 'orders', key }, async () => ({ id: 8 }))
      expect(again).toMatchObject({ value: { id: 7 }, replayed: true })
    }))

  it('adds jobs and works on them', () =>
    withDibs(async (dibs, pool) => {
      const jobs = dibs.jobs({ double: {} })
      const client = await pool.connect()
      await client.query('begin')
      const { id } = await jobs.add('double', 21, { tx: client })
      await client.query('commit')
      client.release()
      await using _ = await jobs.work({ double: async (input) => Number(input) * 2 })
      expect(await jobs.result(id, { waitMs: 20_000 })).toBe(42)
    }))

  it('hands a lock over to one who waits in another instance, by a notification', () =>
    withDibs(async (dibs, pool) => {
      const other = await Dibs.open({ pool, schema })
      const order: string[] = []
      const held = deferred()
      const go = deferred()
      const first = dibs.withLock('till', async () => {
        held.resolve()
        await go.promise
        order.push('first')
      })
      await held.promise
      const second = other.withLock('till', { waitMs: 20_000 }, async () => void order.push('second'))
      await until(
        async () =>
          (await pool.query("select 1 from pg_stat_activity where query ilike 'listen %'")).rowCount,
        'somebody to listen',
      )
      go.resolve()
      await Promise.all([first, second])
      expect(order).toEqual(['first', 'second'])
      await other.close()
    }))

  it('cuts a connection that is silent past the deadline', async () => {
    await using proxy = await PgProxy.start({ url: directUrl })
    await withDibs(
      async (dibs) => {
        const work = dibs.transaction(
          async (tx) => {
            await tx.query('select 1')
            proxy.inject({ kind: 'black-hole' })
            await tx.query('select 2')
          },
          { deadlineMs: 1_500 },
        )
        await expect(work).rejects.toThrow(StatementTimeoutError)
        proxy.inject({ kind: 'heal' })
        expect(await dibs.transaction(async () => 'healthy')).toBe('healthy')
      },
      { connectionString: proxy.url },
    )
  })

  it('says when the outcome of COMMIT is unknown', async () => {
    await using proxy = await PgProxy.start({ url: directUrl })
    await withDibs(
      async (dibs, pool) => {
        const table = `"${schema}".${freshName()}`
        await pool.query(`create table ${table} (n int)`)
        const cut = proxy.inject({ kind: 'cut', when: 'after', statement: '/^commit$/' })
        const work = dibs.transaction((tx) => tx.query(`insert into ${table} values (1)`))
        await expect(work).rejects.toThrow(CommitOutcomeUnknownError)
        expect(cut.strikes).toBe(1)
        expect((await pool.query(`select n from ${table}`)).rows).toEqual([{ n: 1 }])
      },
      { connectionString: proxy.url },
    )
  })
})
