import pg, { type Pool } from 'pg'
import { expect, it } from 'vitest'
import { inTransaction } from '../../../../examples/races/in-transaction.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { explore } from '../explore.js'
import type { ExploreHandle } from '../options.js'

const { url, schema } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create sequence s;
  create function quietly() returns void language sql as $$ select set_config('work_mem', '200kB', true) $$`)

const setup = (db: Pool) => db.query('insert into counter values (1, 0), (2, 0)')

const change = (id: number, before: string[]) => (db: Pool) =>
  inTransaction(db, async (tx) => {
    for (const sql of before) await tx.query(sql)
    await tx.query('update counter set n = n + 1 where id = $1', [id])
  })

it.each([
  ['at SERIALIZABLE reads count as well', ['set transaction isolation level serializable']],
  [
    'at SERIALIZABLE reads count as well',
    ['/* at */ set local default_transaction_isolation = serializable'],
  ],
  ['an actor sets search_path', ['set local search_path = SCHEMA']],
  [
    'set_config changes the level or the search path',
    [`select set_config('search_path', current_setting('search_path'), true)`],
  ],
])('nothing is left out when %s', async (off, before) => {
  const own = before.map((sql) => sql.replace('SCHEMA', schema))
  const report = await explore({ url, setup, actors: { alice: change(1, own), bob: change(2, []) } })
  expect(report.reduction.off).toBe(off)
  expect(report.isExhaustive).toBe(true)
  expect(report.schedules).toBe(before[0]?.startsWith('select') ? 10 : 6)
})

it('nothing is left out when a function may set the level', async () => {
  const report = await explore({
    url,
    setup,
    actors: { alice: change(1, ['select quietly()']), bob: change(2, []) },
  })
  expect(report.reduction.off).toBe('quietly() may change the level or the search path')
})

/** Connects by itself, with settings of its own. */
const connecting = (settings: string, act: (db: Pool) => Promise<unknown>) => async (db: ExploreHandle) => {
  const target = new URL(db.url)
  target.searchParams.set('options', `-c search_path=${schema} ${settings}`)
  const pool = new pg.Pool({ connectionString: target.href, max: 1 })
  try {
    return await act(pool)
  } finally {
    await pool.end()
  }
}

it('nothing is left out when a connection comes with another search_path', async () => {
  const own = connecting(`-c search_path=${schema},public`, change(1, []))
  const report = await explore({ url, setup, actors: { alice: own, bob: change(2, []) } })
  expect(report.reduction.off).toBe('a connection comes with another search_path')
})

it('a connection may come with another level', async () => {
  const draw = async (db: Pick<Pool, 'query'>) => (await db.query(`select nextval('s') as no`)).rows[0].no
  const drawThenRead = (db: Pool) =>
    inTransaction(db, async (tx) => {
      await tx.query('select n from counter where id = 2')
      const no = await draw(tx)
      const { rows } = await tx.query('select n from counter where id = 1')
      return `drew ${no}, saw ${rows[0].n}`
    })
  const seen = new Set<unknown>()
  await explore({
    url,
    setup,
    actors: {
      alice: (db) => change(1, [])(db).then(() => draw(db)),
      bob: connecting('-c default_transaction_isolation=repeatable\\ read', drawThenRead),
    },
    invariant: (_db, { bob }) => void seen.add(bob?.status === 'fulfilled' && bob.value),
  })
  // The second is of a snapshot from before alice's commit, though the number is from after it.
  expect(seen).toEqual(new Set(['drew 1, saw 0', 'drew 2, saw 0', 'drew 1, saw 1', 'drew 2, saw 1']))
})
