import { describe, expect, it } from 'vitest'
import { kv, openKv, pool, schema } from '../../../test/kv-fixture.js'

openKv()

describe('the table', () => {
  it.each([
    ["('', '1', 1, null, now(), now())", 'kv_key_length'],
    ["(repeat('x', 513), '1', 1, null, now(), now())", 'kv_key_length'],
  ])('refuses %s', async (row, constraint) => {
    await expect(pool.query(`insert into ${schema.name}.kv values ${row}`)).rejects.toMatchObject({
      constraint,
    })
  })

  it('loses what has expired to maintenance, so many at a time, and nothing else', async () => {
    for (const n of [1, 2, 3, 4, 5]) await kv.set(`old:${n}`, n, { ttlMs: n * 1_000 })
    await kv.set('young', 1, { ttlMs: 1_000_000 })
    await kv.set('for ever', 1)
    await schema.clock.advance(500_000)
    const forget = async (batch: number) =>
      Number((await pool.query(`select ${schema.name}.kv_delete_expired(${batch}) as n`)).rows[0].n)
    const client = await pool.connect()
    try {
      // The function skips locked rows and does not wait for them.
      await client.query(`begin; select from ${schema.name}.kv where key = 'old:1' for update`)
      await pool.query(`alter function ${schema.name}.kv_delete_expired set lock_timeout = 1`)
      expect(await forget(0)).toBe(0)
      expect(await forget(1)).toBe(1)
    } finally {
      await client.query('rollback')
      client.release()
    }
    expect(await forget(1)).toBe(1)
    const { rows } = await pool.query(`select key from ${schema.name}.kv order by key`)
    expect(rows.map(({ key }) => key)).toEqual(['for ever', 'old:3', 'old:4', 'old:5', 'young'])
    expect(await forget(100)).toBe(3)
    expect(await forget(100)).toBe(0)
    expect((await kv.list()).items.map(({ key }) => key)).toEqual(['for ever', 'young'])
  })
})
