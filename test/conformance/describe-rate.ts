import { afterAll, beforeAll, expect, it } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { throughPool } from '../database.js'
import type { Context } from './harness.js'

export function describeRate({ schema, admin, transaction, ids }: Context): void {
  let dibs: Dibs
  beforeAll(async () => {
    dibs = await Dibs.open({ ...throughPool, pool: admin, schema, listen: false })
  })
  afterAll(() => dibs.close())

  it('takes in the transaction, refuses in it, and is committed or rolled back with it', async () => {
    const rate = dibs.rateLimit('r', { algorithm: 'fixed-window', limit: 5, perMs: 3_153_600_000_000 })
    await transaction(async (_, { tx, insert }) => {
      expect(await rate.take('🦊', 2, { tx })).toMatchObject({ remaining: 3, degraded: false })
      expect(await rate.tryTake('🦊', 4, { tx })).toMatchObject({ ok: false, remaining: 3 })
      expect(await rate.peek('🦊', { tx })).toMatchObject({ remaining: 3 })
      expect(await rate.peek('🦊')).toMatchObject({ remaining: 5 })
      await insert('later', 'later')
    })
    expect(await ids()).toEqual(['later'])
    const failed = transaction(async (_, { tx }) => {
      await rate.take('🦊', 3, { tx })
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect(await rate.peek('🦊')).toMatchObject({ remaining: 3 })
  })
}
