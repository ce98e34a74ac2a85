import { expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { crashLoop } from './crash-loop.js'
import { recordEffects } from './effects.js'

const { url } = exploredSchema('create table t (id int primary key)')

it('remembers what was done, by name and key', async () => {
  const effects = recordEffects()
  expect(await effects.perform('charge', 'order 1', { amount: 5 })).toEqual({ id: 'charge-1' })
  expect(await effects.perform('charge', 'order 1', { amount: 5 })).toEqual({ id: 'charge-2' })
  await effects.perform('charge', 'order 2')
  await effects.perform('mail', 'order 1')
  expect(effects.count('charge')).toBe(3)
  expect(effects.count('charge', 'order 1')).toBe(2)
  expect(effects.repeated).toEqual([{ name: 'charge', key: 'order 1' }])
  expect(effects.performed[0]).toEqual({
    name: 'charge',
    key: 'order 1',
    input: { amount: 5 },
    answer: { id: 'charge-1' },
  })
  effects.clear()
  expect(effects.performed).toEqual([])
})

it('may give the first answer again, and then has one effect', async () => {
  const effects = recordEffects({ dedupes: true, answer: ({ key }, number) => `${key} no. ${number}` })
  expect(await effects.perform('charge', 'order 1')).toBe('order 1 no. 1')
  expect(await effects.perform('charge', 'order 1')).toBe('order 1 no. 1')
  expect(await effects.perform('charge', 'order 2')).toBe('order 2 no. 2')
  expect(effects.repeated).toEqual([])
})

it('asks for a name and a key', async () => {
  const effects = recordEffects()
  await expect(effects.perform('', 'k')).rejects.toMatchObject({ code: 'DIBS_INVALID_INPUT' })
  await expect(effects.perform('charge', undefined as never)).rejects.toThrow(/tells this effect from others/)
})

it.each([
  [false, ['crash:before-1']],
  [true, []],
])('charged twice, if the world takes a second call for a new one: dedupes %s', async (dedupes, expected) => {
  const effects = recordEffects({ dedupes })
  const report = await crashLoop({
    url,
    throws: false,
    modes: ['crash'],
    effects,
    run: async (db) => {
      await effects.perform('charge', 'order 1')
      await db.query('insert into t values (1) on conflict do nothing')
    },
    // The program reads first.
    recover: async (db) => {
      if ((await db.query('select from t')).rows.length > 0) return
      await effects.perform('charge', 'order 1')
      await db.query('insert into t values (1)')
    },
  })
  const failed = report.points.filter(({ verdict }) => verdict === 'failed')
  expect(failed.map(({ replay }) => replay)).toEqual(expected)
  if (expected.length > 0) expect(failed[0]?.repeatedEffects).toEqual(['charge order 1'])
})

it('nothing is done by a process that is gone', async () => {
  const effects = recordEffects()
  let goOn = (): void => {}
  const report = await crashLoop({
    url,
    modes: ['crash'],
    effects,
    run: async (db) => {
      // Beside the statement, not after it.
      const later = new Promise<void>((resolve) => {
        goOn = resolve
      })
      void later.then(() => effects.perform('mail', 'order 1'))
      await db.query('insert into t values (1) on conflict do nothing')
    },
    recover: async () => {
      goOn()
      await new Promise((resolve) => setImmediate(resolve))
    },
    invariant: (_db, { run }) => effects.count('mail') === (run === undefined ? 0 : 1),
  })
  expect(report.points).toHaveLength(3)
})
