import { afterAll, beforeAll, expect, it } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { throughPool } from '../database.js'
import type { Context } from './harness.js'

/** The values that tell a library's own encoding of JSON and text. */
const value = { quotes: `"'\\`, list: ['🦊', null, true, -0.5, ''], nested: { null: 'null', n: 12345678901 } }

export function describeKv({ schema, admin, transaction, ids }: Context): void {
  let dibs: Dibs
  beforeAll(async () => {
    dibs = await Dibs.open({ ...throughPool, pool: admin, schema, listen: false })
  })
  afterAll(() => dibs.close())

  it('works in the transaction, and is seen by others when it commits', async () => {
    const { kv } = dibs
    await transaction(async (_, { tx }) => {
      const claim = await kv.setIfAbsent('a', value, { tx, ttlMs: 60_000 })
      expect(claim).toEqual({ ok: true, version: expect.any(Number) })
      const version = claim.ok ? claim.version : 0
      const entry = { value, version, expiresAt: expect.any(Date) }
      expect(await kv.setIfAbsent('a', 1, { tx })).toEqual({ ok: false, current: entry })
      expect(await kv.get('a', { tx })).toEqual(entry)
      expect(await kv.getMany(['none', 'a'], { tx })).toEqual([undefined, entry])
      expect(await kv.compareAndSet('a', 7, 1, { tx })).toEqual({ ok: false, current: entry })
      expect(await kv.compareAndSet('a', version, value, { tx })).toMatchObject({ ok: true })
      const patched = await kv.patch('a', { nested: { more: [] } }, { tx, remove: ['list', ['nested', 'n']] })
      expect(patched?.value).toEqual({ quotes: value.quotes, nested: { null: 'null', more: [] } })
      await kv.set('b', null, { tx })
      expect(await kv.delete('b', { tx, ifVersion: 7 })).toMatchObject({
        ok: false,
        current: { value: null },
      })
      expect(await kv.delete('b', { tx })).toEqual({ ok: true })
      await kv.set('c', 'c', { tx })
      const page = await kv.list({}, { tx, limit: 1 })
      expect(page).toMatchObject({ items: [{ key: 'a' }], nextCursor: expect.any(String) })
      expect((await kv.list({}, { tx, cursor: page.nextCursor })).items).toMatchObject([
        { key: 'c', value: 'c' },
      ])
      expect(await kv.get('a')).toBeUndefined()
    })
    expect((await kv.list()).items.map(({ key }) => key)).toEqual(['a', 'c'])
    await admin.query(`delete from ${schema}.kv`)
  })

  it('is rolled back with it', async () => {
    const failed = transaction(async (_, { tx }) => {
      await dibs.kv.setIfAbsent('a', 1, { tx })
      await dibs.kv.set('b', 1, { tx })
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect((await dibs.kv.list()).items).toEqual([])
  })

  it('leaves the transaction usable after a claim that was lost', async () => {
    await dibs.kv.set('a', 'theirs')
    await transaction(async (_, { tx, insert }) => {
      expect(await dibs.kv.setIfAbsent('a', 'ours', { tx })).toMatchObject({
        ok: false,
        current: { value: 'theirs' },
      })
      await insert('later', 'later')
      expect(await dibs.kv.delete('a', { tx })).toEqual({ ok: true })
    })
    expect(await ids()).toEqual(['later'])
    expect(await dibs.kv.get('a')).toBeUndefined()
  })
}
