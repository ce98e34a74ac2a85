import type { Pool, PoolClient } from 'pg'
import { expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { crashLoop } from './crash-loop.js'
import type { CrashLoopOptions } from './options.js'

const { url } = exploredSchema('create table t (id int primary key, n int not null default 0)')

const loop = (options: Omit<CrashLoopOptions, 'url'>) =>
  crashLoop({ url, throws: false, modes: ['error'], invariant: () => true, ...options })

const codeOf = (error: unknown): unknown => (error as { code?: unknown }).code

it('each statement fails with each code, and after it was executed with those that end the connection', async () => {
  const seen: string[] = []
  await loop({
    run: async (db) => {
      try {
        await db.query('insert into t values (1)')
      } catch (error) {
        seen.push(String(codeOf(error)))
      }
    },
    recover: () => {},
  })
  // The server sends no message about a lost connection. `pg` raises an error of its own, without a code.
  expect(seen).toEqual(['40001', '40P01', '57P01', 'undefined', '55P03', '57P01', 'undefined'])
})

it('other codes can be asked for', async () => {
  const seen: unknown[] = []
  await loop({
    errors: ['23505', '53300'],
    run: (db) => db.query('select 1').catch((error) => seen.push(codeOf(error))),
    recover: () => {},
  })
  expect(seen).toEqual(['23505', '53300'])
})

/** The results of a client's statements after an error, up to the end of its transaction. */
const watched = (seen: unknown[], work: (tx: PoolClient) => Promise<unknown>) => async (db: Pool) => {
  const tx = await db.connect()
  try {
    await tx.query('begin')
    await work(tx)
    await tx.query('commit')
  } catch (error) {
    seen.push(codeOf(error))
    const after = await tx.query('select 1').catch((again) => codeOf(again))
    seen.push(typeof after === 'string' ? after : 'goes on')
    await tx.query('rollback')
  } finally {
    tx.release()
  }
}

it.each([
  ['a simple query', (tx: PoolClient) => tx.query('insert into t values (1)')],
  ['one with parameters', (tx: PoolClient) => tx.query('insert into t values ($1)', [1])],
  [
    'a prepared one',
    (tx: PoolClient) => tx.query({ name: 'add', text: 'insert into t values ($1)', values: [1] }),
  ],
])('in a transaction all that follows is refused, as by a server, after %s', async (_, work) => {
  const seen: unknown[] = []
  const { verdict } = await loop({
    errors: ['40001'],
    run: watched(seen, work),
    recover: () => {},
    invariant: async (db, { fault }) => {
      const { rows } = await db.query('select from t')
      expect(rows).toHaveLength(fault ? 0 : 1)
    },
  })
  expect(verdict).toBe('passed')
  // COMMIT has ended the transaction, whatever it said.
  expect(seen).toEqual(['40001', '25P02', '40001', 'goes on'])
})

it('BEGIN in the same message has begun, and COMMIT AND CHAIN has not', async () => {
  const seen: unknown[] = []
  await loop({
    errors: ['40001'],
    run: async (db) => {
      const client = await db.connect()
      await client.query('begin; insert into t values (1)').catch((error) => seen.push(codeOf(error)))
      const after = await client.query('select 1').catch(codeOf)
      if (typeof after === 'string') seen.push(after)
      await client.query('rollback')
      client.release()
    },
    recover: () => {},
  })
  expect(seen.slice(0, 2)).toEqual(['40001', '25P02'])
  const left: number[] = []
  await loop({
    replay: 'error:before-2:40001',
    run: async (db) => {
      const client = await db.connect()
      await client.query('begin')
      await client.query('insert into t values (1)')
      await client.query('commit and chain').catch(() => {})
      await client.query('insert into t values (2)')
      await client.query('rollback')
      client.release()
    },
    recover: () => {},
    invariant: async (db, { fault }) => {
      if (fault) left.push(...(await db.query('select id from t')).rows.map(({ id }) => id))
    },
  })
  expect(left).toEqual([2])
})

it('a savepoint survives it', async () => {
  const seen: unknown[] = []
  const { verdict, printout } = await loop({
    errors: ['55P03'],
    run: async (db) => {
      const tx = await db.connect()
      await tx.query('begin')
      await tx.query('insert into t values (1)').catch((error) => seen.push(codeOf(error)))
      await tx.query('savepoint here').catch(() => {})
      await tx.query('insert into t values (2)').catch(async (error) => {
        seen.push(codeOf(error))
        await tx.query('rollback to here').catch(() => {})
      })
      await tx.query('commit')
      tx.release()
    },
    recover: () => {},
    invariant: async (db, { fault }) => {
      const { rows } = await db.query('select id from t')
      const left = rows.map(({ id }) => id)
      if (fault?.statement === 2) expect(left).toEqual([1])
    },
  })
  expect(verdict, printout).toBe('passed')
  expect(seen).toContain('55P03')
})

it('a statement that was prepared can be used again', async () => {
  const answers: unknown[] = []
  await loop({
    errors: ['40001'],
    run: async (db) => {
      const client = await db.connect()
      const ask = () => client.query({ name: 'ask', text: 'select $1::int as n', values: [7] })
      answers.push(
        await ask()
          .catch(() => ask())
          .then(({ rows }) => rows[0].n),
      )
      client.release()
    },
    recover: () => {},
  })
  expect(answers).toEqual([7, 7, 7])
})

it('code that tries again is right at all points, and code that does not look at COMMIT is not', async () => {
  const add =
    (isOnce: boolean) =>
    async (db: Pool): Promise<void> => {
      for (let attempt = 1; ; attempt++) {
        const tx = await db.connect()
        let broken: Error | undefined
        try {
          await tx.query('begin')
          const { rowCount } = isOnce
            ? await tx.query('insert into t values (2) on conflict do nothing')
            : { rowCount: 1 }
          if (rowCount === 1) await tx.query('update t set n = n + 1 where id = 1')
          await tx.query('commit')
          return
        } catch (error) {
          broken = error as Error
          if (attempt === 3) throw error
          await tx.query('rollback').catch(() => {})
        } finally {
          tx.release(broken)
        }
      }
    }
  const options: Omit<CrashLoopOptions, 'url' | 'run'> = {
    setup: (db) => db.query('insert into t values (1)'),
    recover: () => {},
    invariant: async (db) => {
      const { rows } = await db.query('select n from t where id = 1')
      expect(rows).toEqual([{ n: 1 }])
    },
  }
  const right = await loop({ ...options, run: add(true) })
  expect(right.verdict, right.printout).toBe('passed')
  const wrong = await loop({ ...options, run: add(false) })
  const failed = wrong.points.filter(({ verdict }) => verdict === 'failed')
  expect(failed.map(({ replay }) => replay)).toEqual(['error:after-2:57P01', 'error:after-2:08006'])
})

it('a run that never ends after an error is found', async () => {
  const { points } = await loop({
    patienceMs: 1_500,
    errors: ['40001'],
    run: (db) => db.query('select 1').catch(() => new Promise(() => {})),
    recover: () => {},
  })
  const [, point] = points
  expect(point?.run).toBe('hangs')
  expect(point?.failure?.kind).toBe('stuck')
  expect(point?.failure?.message).toMatch(/^run hangs: run has waited 1500 ms for something/)
})

it('a connection that is never given back is found, if the pool has no other', async () => {
  const { default: pg } = await import('pg')
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  const report = await crashLoop({
    pool,
    throws: false,
    modes: ['error'],
    errors: ['40001'],
    run: async () => {
      const client = await pool.connect()
      try {
        await client.query('select 1')
        client.release()
      } catch {
        await pool.query('select 2') // while it still has the other
      }
    },
    recover: () => {},
    invariant: () => true,
  }).finally(() => pool.end())
  const [, point] = report.points
  expect(point?.failure).toEqual({
    kind: 'stuck',
    message: 'run hangs: run waits for a connection of its pool (all 1 in use)',
  })
})
