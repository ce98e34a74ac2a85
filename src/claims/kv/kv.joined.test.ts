import type pg from 'pg'
import { describe, expect, it } from 'vitest'
import { dibs, kv, OTHER, openKv, pool, schema } from '../../../test/kv-fixture.js'
import { BusyError, ConflictError } from '../../errors.js'

openKv()

describe('in the transaction of the caller', () => {
  it('lives and dies with it', async () => {
    await kv.set('kept', 1)
    const failed = dibs.transaction(async (tx) => {
      await kv.set('a', 1, { tx })
      await kv.set('kept', 2, { tx })
      await kv.setIfAbsent('b', 1, { tx })
      expect((await kv.getMany(['a', 'b'], { tx })).map((entry) => entry?.value)).toEqual([1, 1])
      expect((await kv.list({}, { tx })).items).toHaveLength(3)
      expect(await kv.get('a')).toBeUndefined()
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    expect((await kv.list()).items).toMatchObject([{ key: 'kept', value: 1 }])
    await dibs.transaction(async (tx) => {
      const { version } = await kv.set('a', { n: 1 }, { tx })
      await kv.compareAndSet('a', version, { n: 2 }, { tx })
      await kv.patch('a', { m: 3 }, { tx })
      await kv.delete('kept', { tx })
    })
    expect((await kv.list()).items).toMatchObject([{ key: 'a', value: { n: 2, m: 3 } }])
  })

  it('makes others wait, with a bound', async () => {
    await kv.set('a', 1)
    await schema.waits.atOnce()
    try {
      await dibs.transaction(async (tx) => {
        await kv.set('a', 2, { tx })
        await kv.set('new', 2, { tx })
        const others = [
          () => kv.set('a', 3),
          () => kv.patch('a', {}),
          () => kv.delete('a'),
          () => kv.compareAndSet('a', 1, 3),
          () => kv.setIfAbsent('new', 3),
        ]
        for (const other of others) await expect(other()).rejects.toThrow(BusyError)
        expect((await kv.get('a'))?.value).toBe(1)
      })
    } finally {
      await schema.waits.reset()
    }
    expect((await kv.get('a'))?.value).toBe(2)
  })

  it('can be used further after a claim that was lost', async () => {
    await kv.set('a', 1)
    await dibs.transaction(async (tx) => {
      expect((await kv.setIfAbsent('a', 2, { tx })).ok).toBe(false)
      await kv.set('b', 2, { tx })
    })
    expect((await kv.get('b'))?.value).toBe(2)
  })

  it.each(['repeatable read', 'serializable'] as const)(
    'at %s, what was written since is a conflict, and run again',
    async (isolation) => {
      const calls = {
        setIfAbsent: (tx: pg.PoolClient) => kv.setIfAbsent('a', 2, { tx }),
        set: (tx: pg.PoolClient) => kv.set('a', 2, { tx }),
        compareAndSet: (tx: pg.PoolClient) => kv.compareAndSet('a', OTHER, 2, { tx }),
        delete: (tx: pg.PoolClient) => kv.delete('a', { tx }),
        patch: (tx: pg.PoolClient) => kv.patch('a', {}, { tx }),
      }
      for (const [name, call] of Object.entries(calls)) {
        if (name !== 'setIfAbsent') await kv.set('a', {})
        const client = await pool.connect()
        await client.query(`begin isolation level ${isolation}; select 1`)
        await kv.set('a', { by: 'another' })
        const error = await call(client).catch((thrown: unknown) => thrown)
        await client.query('rollback')
        client.release()
        expect(error, name).toBeInstanceOf(ConflictError)
        expect(error, name).toMatchObject({ sqlState: '40001' })
      }
      let attempts = 0
      const claim = await dibs.transaction(
        async (tx) => {
          attempts = tx.attempt
          await tx.query('select 1')
          if (tx.attempt === 1) await kv.set('b', 'theirs')
          return kv.setIfAbsent('b', 'ours', { tx })
        },
        { isolation },
      )
      expect(attempts).toBe(2)
      expect(claim).toMatchObject({ ok: false, current: { value: 'theirs' } })
    },
  )

  it.each(['repeatable read', 'serializable'] as const)(
    'at %s, a key is not claimed that the transaction still sees',
    async (isolation) => {
      for (const call of [kv.setIfAbsent.bind(kv), kv.set.bind(kv)]) {
        await kv.set('a', 'old')
        const seen: unknown[] = []
        await dibs.transaction(
          async (tx) => {
            seen.push((await kv.get('a', { tx }))?.value)
            if (tx.attempt === 1) await kv.delete('a')
            await call('a', 'new', { tx })
          },
          { isolation },
        )
        expect(seen).toEqual(['old', undefined])
        expect((await kv.get('a'))?.value).toBe('new')
      }
    },
  )
})
