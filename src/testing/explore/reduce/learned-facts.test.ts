import type { Pool } from 'pg'
import { expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { explore } from '../explore.js'

const { url } = exploredSchema(`
  create table job (id uuid primary key default gen_random_uuid(), status text not null default 'queued');
  create table event (kind text primary key, at timestamptz not null default now());
`)

it('a fact about a statement holds for all of its parameters', async () => {
  const idOf = async (db: Pool) => (await db.query('select id from job')).rows[0].id
  const claim = async (db: Pool) =>
    db.query(`update job set status = 'running' where id = $1`, [await idOf(db)])
  const finish = async (db: Pool) =>
    (await db.query(`update job set status = 'done' where id = $1 and status = 'running'`, [await idOf(db)]))
      .rowCount
  const ends = new Set<unknown>()
  const report = await explore({
    url,
    setup: (db) => db.query('insert into job default values'), // another id each time
    actors: { claimer: claim, finisher: finish },
    invariant: (_db, { finisher }) => void ends.add(finisher?.status === 'fulfilled' && finisher.value),
  })
  expect(report.isExhaustive).toBe(true)
  expect(report.schedules + report.reduction.repeats).toBeLessThan(20)
  expect(ends).toEqual(new Set([0, 1]))
})

it('times that the invariant reads count too', async () => {
  const add = (kind: string) => (db: Pool) => db.query('insert into event values ($1)', [kind])
  const seen = new Set<string>()
  await explore({
    url,
    actors: { alice: add('created'), bob: add('paid') },
    invariant: async (db) => {
      const { rows } = await db.query('select kind from event order by at')
      seen.add(rows.map(({ kind }) => kind).join())
    },
  })
  expect(seen).toEqual(new Set(['created,paid', 'paid,created']))
})
