import type { Pool } from 'pg'
import { expect, it } from 'vitest'
import { inTransaction } from '../../../../examples/races/in-transaction.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { explore } from '../explore.js'

const { url, schema } = exploredSchema('create table counter (id int primary key, n int not null)')

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
