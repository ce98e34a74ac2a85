import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { Dibs } from '../../dibs.js'
import { createTestSchema } from '../test-schema.js'
import { explore } from './explore.js'

const { url } = exploredSchema(`
  create table effect (id int primary key);
  create table migration (version int);
  create function own() returns void language plpgsql as
    'begin perform from effect; perform kept_by_dibs.acquire_peek_lock(''l'', 1); end'`)
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})

/** Not the usual name: a schema of Dibs is known by what is in it. */
const schema = 'kept_by_dibs'
const others: Dibs[] = []
beforeAll(async () => {
  const made = await createTestSchema(pool, 'made_for_tests')
  for (const name of [schema, made.name])
    others.push(await Dibs.open({ pool, schema: name, listen: false, prepared: false }))
})
afterAll(async () => {
  for (const dibs of others) await dibs.close()
  await pool.end()
})

const notesOn = async (act: (dibs: Dibs) => Promise<unknown>, of = 0): Promise<readonly string[]> => {
  const actor = () => act(others[of] as Dibs)
  const { notes } = await explore({
    pool,
    actors: { alice: actor },
    invariant: () => true,
    bound: { preemptions: 0, random: 0 },
  })
  return notes
}

const acts: [string, (dibs: Dibs) => Promise<unknown>][] = [
  [
    'once',
    (dibs) =>
      dibs.once({ scope: 's', key: 'k' }, async (tx) => {
        await tx.query('insert into effect values (1)')
      }),
  ],
  ['once, leased', (dibs) => dibs.once({ scope: 's', key: 'k', mode: 'leased' }, async () => 1)],
  ['withLock', (dibs) => dibs.withLock('l', async () => 1)],
  ['quota', (dibs) => dibs.quota('q', { limit: 1 }).tryTake('ann')],
  ['rateLimit', (dibs) => dibs.rateLimit('r', { algorithm: 'gcra', limit: 1, perMs: 1_000 }).tryTake('ann')],
  [
    'singleton',
    (dibs) => dibs.singleton({ scope: 's', holder: 'ann', per: 'day', timeZone: 'UTC' }, async () => 1),
  ],
  ['insertOnce', (dibs) => dibs.rows.insertOnce('effect', ['id'], { id: 1 })],
  ['add_job', (dibs) => dibs.transaction((tx) => tx.query(`select ${dibs.schema}.add_job('mail', '{}')`))],
]

it.each(acts)('%s: one note stands for all functions of Dibs', async (_, act) => {
  expect(await notesOn(act)).toEqual([`Functions of Dibs in schema ${schema} run as one step each.`])
})

it.each(acts)('%s: none in a schema for tests, whose functions have yield points', async (_, act) => {
  expect(await notesOn(act, 1)).toEqual([])
})

it('names a function of the user, who has a table `migration` too, that calls one of Dibs', async () => {
  expect(await notesOn((dibs) => dibs.pool.query('select own()'))).toEqual([
    `Functions of Dibs in schema ${schema} run as one step each.`,
    "own() runs as one step: it has no yield point (perform dibs_point('name')).",
  ])
})
