import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { directUrl, freshName, url, withPool } from '../../test/database.js'
import { until } from '../../test/until.js'
import { Dibs } from '../dibs.js'

const schema = freshName()

beforeAll(async () => {
  await (await Dibs.open({ url, schema, listen: false })).close()
})

afterAll(() => withPool((pool) => pool.query(`drop schema ${schema} cascade`)))

it('finds the partition that another has made while it waited for its turn', async () => {
  const [first, second] = [new pg.Client(directUrl), new pg.Client(directUrl)]
  await Promise.all([first.connect(), second.connect()])
  try {
    const { rows } = await second.query('select pg_backend_pid() as pid')
    const make = `select ${schema}.job_history_day('2099-12-31')`
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
