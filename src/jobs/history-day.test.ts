import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { directUrl, freshName, url, withPool } from '../../test/database.js'
import { realTime } from '../../test/real-time.js'
import { until } from '../../test/until.js'
import { Dibs } from '../dibs.js'

const schema = freshName()

beforeAll(async () => {
  await (await Dibs.open({ url, schema, listen: false })).close()
})

afterAll(() => withPool((pool) => pool.query(`drop schema ${schema} cascade`)))

it('finds the partition that another session has created while it waited for the lock', async () => {
  const [first, second] = [new pg.Client(directUrl), new pg.Client(directUrl)]
  await Promise.all([first.connect(), second.connect()])
  try {
    const { rows } = await second.query('select pg_backend_pid() as pid')
    const make = `select ${schema}.job_history_add_partition('2099-12-31')`
    await first.query('begin')
    await first.query(make)
    const made = second.query(make)
    made.catch(() => {})
    const waits = `select from pg_locks where pid = $1 and locktype = 'relation' and not granted`
    await until(async () => (await first.query(waits, [rows[0].pid])).rowCount === 1, 'the other to wait')
    await first.query('commit')
    await made
    const { rowCount } =
      await first.query(`select from pg_inherits where inhparent = '${schema}.job_history'::regclass
      and inhrelid = '${schema}.job_history_20991231'::regclass`)
    expect(rowCount).toBe(1)
  } finally {
    await Promise.all([first.end(), second.end()])
  }
})

it.each(['job_expire(10)', `job_recover(10, '{}')`])(
  '%s waits for it for a second, since heartbeats wait behind',
  realTime,
  async (call) => {
    const [holder, client] = [new pg.Client(directUrl), new pg.Client(directUrl)]
    await Promise.all([holder.connect(), client.connect()])
    try {
      const at = `now() - interval '1 minute'`
      await client.query(`select ${schema}.add_job('old', keep_days => 201, expires_at => ${at})`)
      await client.query(`select ${schema}.add_job('lost', keep_days => 202)`)
      const { rows } = await client.query(`select id from ${schema}.lane where name = 'lost'`)
      await client.query(`select ${schema}.job_claim('{ann}', '{1}', '{${rows[0].id}}', '{0}', '{0}', '{1}')`)
      await client.query(
        `update ${schema}.job set lease_until = ${at} where state = 'running'; update ${schema}.job_held set check_at = ${at}`,
      )
      await holder.query(`begin; lock table ${schema}.job_history in share update exclusive mode`)
      const startedAt = performance.now()
      await expect(client.query(`select ${schema}.${call}`)).rejects.toMatchObject({ code: '55P03' })
      const tookMs = performance.now() - startedAt
      expect([tookMs > 900, tookMs < 1_900], `${tookMs} ms`).toEqual([true, true])
      await holder.query('rollback')
      const { rows: done } = await client.query(`select ${schema}.${call} as told`)
      expect(done[0].told).not.toEqual(0)
      expect(done[0].told.lost).not.toEqual([])
    } finally {
      await Promise.all([holder.end(), client.end()])
    }
  },
)
