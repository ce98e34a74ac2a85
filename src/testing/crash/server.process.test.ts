import pg from 'pg'
import { expect, it } from 'vitest'
import { directUrl } from '../../../test/database.js'
import { startPostgres } from '../../../test/postgres-server.js'
import { crashLoop } from './crash-loop.js'

const invariant = () => true

it('is shut down at each COMMIT, and what was committed is there when it is back', {
  timeout: 180_000,
}, async () => {
  const server = await startPostgres({ durable: true })
  const pool = new pg.Pool({ connectionString: server.url })
  try {
    await pool.query('create table t (id int primary key); create table log (n int)')
    const left: Record<string, number> = {}
    const report = await crashLoop({
      pool,
      modes: ['server'],
      run: async () => {
        await pool.query('select from t')
        await pool.query('insert into log values (1)')
        const tx = await pool.connect()
        let broken: Error | undefined
        try {
          await tx.query('begin')
          await tx.query('insert into t values (1) on conflict do nothing')
          await tx.query('commit')
        } catch (error) {
          broken = error as Error
          throw error
        } finally {
          tx.release(broken)
        }
      },
      recover: () => {},
      invariant: async (db, { fault, run }) => {
        const { rows } = await db.query(
          'select (select count(*) from t)::int as t, (select count(*) from log)::int as log',
        )
        if (fault) left[`${fault.side} ${fault.statement}`] = rows[0].t * 10 + rows[0].log
        return fault === undefined || run?.status === 'rejected'
      },
    })
    expect(report.points.map(({ replay }) => replay)).toEqual([
      'none',
      'server:before-2',
      'server:after-2',
      'server:before-4',
      'server:after-4',
    ])
    expect(left).toEqual({ 'before 2': 0, 'after 2': 1, 'before 4': 1, 'after 4': 11 })
    const { rows } = await pool.query('select from t')
    expect(rows, 'the tables are put back').toHaveLength(0)
  } finally {
    await pool.end()
    await server.stop()
  }
})

it('is left alone if it would lose what it has committed', async () => {
  await expect(
    crashLoop({ url: directUrl, modes: ['server'], run: (db) => db.query('select 1'), invariant }),
  ).rejects.toMatchObject({
    code: 'DIBS_EXPLORATION',
    reason: 'server',
    message: expect.stringMatching(/^This server has .*fsync.* off, and may lose/),
  })
})

it('is left alone if it is not one of ours, or its superuser is not asking', async () => {
  const admin = new pg.Client(directUrl)
  await admin.connect()
  const url = new URL(directUrl)
  url.username = 'crash_tester'
  url.password = 'x'
  try {
    await admin.query(
      `create role crash_tester login password 'x'; grant set on parameter deadlock_timeout to crash_tester`,
    )
    await expect(
      crashLoop({ url: url.href, modes: ['server'], run: (db) => db.query('select 1'), invariant }),
    ).rejects.toThrow(/only with an embedded server of Dibs on this machine, seen as a superuser/)
  } finally {
    await admin.query('drop owned by crash_tester; drop role crash_tester')
    await admin.end()
  }
})
