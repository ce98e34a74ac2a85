import { describe, expect, it } from 'vitest'
import { kv, openKv, pool, schema } from '../../../test/kv-fixture.js'
import { InvalidInputError } from '../../errors.js'
import { keyOf } from '../../postgres/key.js'
import { renderStatement } from '../../postgres/statement.js'
import { scanRange } from './kv-statements.js'

openKv()

describe('list', () => {
  const keysOf = async (prefix: string, limit = 3): Promise<string[]> => {
    const keys: string[] = []
    let cursor: string | undefined
    do {
      const page = await kv.list({ prefix }, { cursor, limit })
      expect(page.items.length).toBeLessThanOrEqual(limit)
      keys.push(...page.items.map(({ key }) => key))
      cursor = page.nextCursor
    } while (cursor !== undefined)
    return keys
  }

  it('reads page by page, in the order of bytes, what begins with a prefix and nothing else', async () => {
    const keys = [
      ...['a', 'a%b', 'a%c', 'a_b', 'ab', 'aB', 'a:1', 'a:10', 'a:2', 'b', 'B', 'ä', 'z', 'ź'],
      // Around the gap of surrogates, and beyond it, where UTF-16 sorts in another order.
      ...[
        'a\ud7ff',
        'a\ud7ffx',
        'a\ue000',
        'a\uffff',
        'a\u{10000}',
        'a\u{10ffff}',
        'a\u{10ffff}x',
        '\u{10ffff}',
      ],
      '\u{10ffff}\u{10ffff}',
    ]
    for (const key of keys) await kv.set(key, key)
    const sorted = keys.toSorted((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
    expect(await keysOf('')).toEqual(sorted)
    for (const prefix of [...keys, 'A', 'a%', 'a_', 'a:', 'none', '\uffff']) {
      expect(await keysOf(prefix)).toEqual(sorted.filter((key) => key.startsWith(prefix)))
    }
  })

  it('says whether there are more, exactly', async () => {
    for (const key of ['k1', 'k2', 'k3', 'k4']) await kv.set(key, 1, { ttlMs: 1_000_000 })
    expect(await kv.list({ prefix: 'k' }, { limit: 4 })).toMatchObject({ nextCursor: undefined })
    const { items, nextCursor } = await kv.list<number>({ prefix: 'k' }, { limit: 3 })
    expect(items[0]).toEqual({
      key: 'k1',
      value: 1,
      version: expect.any(Number),
      expiresAt: expect.any(Date),
    })
    expect((await kv.list({ prefix: 'k' }, { cursor: nextCursor })).items.map(({ key }) => key)).toEqual([
      'k4',
    ])
  })

  it('reads a range of the primary key', async () => {
    const table = `${schema.name}.kv`
    await pool.query(`insert into ${table} select 'key:' || n, '1', 1, null, now(), now()
      from generate_series(1, 10000) n; analyze ${table}`)
    const { text } = renderStatement(scanRange, schema.name)
    const client = await pool.connect()
    try {
      // As the server plans it for values that it does not know, which is what a kept plan comes to.
      await client.query('begin; set local plan_cache_mode = force_generic_plan')
      await client.query(`prepare scan_range as ${text}`)
      const plan = await client.query(
        `explain (format json) execute scan_range('key:99', '', '101', 'key:9:')`,
      )
      const said = JSON.stringify(plan.rows)
      expect(said).toContain('"Index Name":"kv_pkey"')
      expect(said).toMatch(/"Index Cond":"[^"]*>=[^"]*>[^"]*< \$4/)
      expect(said).not.toMatch(/Seq Scan|Sort/)
    } finally {
      await client.query('rollback; deallocate scan_range')
      client.release()
    }
    expect(await keysOf('key:99', 1_000)).toHaveLength(111)
  })
})

describe('keyOf', () => {
  it('makes another key of other parts, and a prefix of the first ones', async () => {
    const parts = [
      ['a', 'b:c'],
      ['a', 'b', 'c'],
      ['a:b', 'c'],
      ['a%3Ab', 'c'],
      ['a', 1],
      ['a', 10n],
    ]
    for (const list of parts) await kv.set(keyOf(...list), list.map(String))
    const { items } = await kv.list<string[]>()
    expect(items).toHaveLength(parts.length)
    const found = await kv.list<string[]>({ prefix: `${keyOf('a')}:` })
    expect(found.items.map(({ key }) => key)).toEqual(['a:1', 'a:10', 'a:b%3Ac', 'a:b:c'])
    expect((await kv.list<string[]>({ prefix: `${keyOf('a:b')}:` })).items).toMatchObject([
      { value: ['a:b', 'c'] },
    ])
  })

  it.each([[[]], [['']], [[1.5]], [[null]], [['a\0']], [['\ud800']], [['x'.repeat(513)]], [[Number.NaN]]])(
    'refuses %j',
    (parts) => {
      expect(() => keyOf(...(parts as string[]))).toThrow(InvalidInputError)
    },
  )
})
