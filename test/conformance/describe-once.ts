import { afterAll, beforeAll, expect, it } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import {
  ConflictError,
  FingerprintMismatchError,
  InProgressError,
  PermanentError,
  TransientError,
} from '../../src/errors.js'
import { dropSchema, freshName, throughPool } from '../database.js'
import type { Context, OpenTransaction } from './harness.js'

/** `once` in a transaction of the library: it lives and dies with it, and what it refuses leaves it usable. */
export function describeOnce({ schema, admin, transaction, ids }: Context): void {
  const own = freshName('once')
  let dibs: Dibs

  beforeAll(async () => {
    dibs = await Dibs.open({ pool: admin, schema: own, ...throughPool, listen: false })
  })
  afterAll(async () => {
    await dibs.close()
    await dropSchema(own)
  })

  const scope = 'orders'
  const answer = { n: 1, text: "it's {}", list: [null, 1.5] }
  /** The work writes by the library's own means. */
  const order = (open: OpenTransaction, key: string) =>
    dibs.onceDetailed({ scope, key, fingerprint: { key }, tx: open.tx }, async () => {
      await open.insert(key, key)
      return answer
    })
  const never = async () => {
    throw new Error('must not run')
  }

  it('runs and commits with the transaction, and is replayed in a later one', async () => {
    await transaction(async (_, open) => {
      expect(await order(open, 'a')).toMatchObject({ value: answer, replayed: false, attempt: 1 })
      expect(await ids()).toEqual([])
      expect(await dibs.claims.get({ scope, key: 'a' })).toBeUndefined()
    })
    expect(await ids()).toEqual(['a'])
    await transaction(async (_, open) => {
      expect(await order(open, 'a')).toMatchObject({ value: answer, replayed: true, attempt: 1 })
      await open.insert('beside', 'beside')
    })
    expect(await ids()).toEqual(['a', 'beside'])
  })

  it('rolls back with the transaction, and runs in the next', async () => {
    const failure = new Error('the caller has changed its mind')
    const failed = transaction(async (_, open) => {
      await order(open, 'b')
      throw failure
    })
    await expect(failed).rejects.toBe(failure)
    expect(await ids()).toEqual([])
    expect(await dibs.claims.get({ scope, key: 'b' })).toBeUndefined()
    await transaction(async (_, open) => {
      expect(await order(open, 'b')).toMatchObject({ replayed: false, attempt: 1 })
    })
    expect(await ids()).toEqual(['b'])
  })

  it('leaves the transaction usable after a mismatch', async () => {
    await dibs.once({ scope, key: 'c', fingerprint: 'another request' }, async () => 1)
    await transaction(async (_, open) => {
      await expect(order(open, 'c')).rejects.toBeInstanceOf(FingerprintMismatchError)
      await open.insert('after', 'after')
    })
    expect(await ids()).toEqual(['after'])
  })

  it('leaves the transaction usable when another transaction works on the key', async () => {
    const other = await admin.connect()
    try {
      await other.query('begin')
      await dibs.once({ scope, key: 'd', tx: other }, async () => 1)
      await transaction(async (session, open) => {
        await session.query(`set local lock_timeout = '7s'`)
        const refused = dibs.once({ scope, key: 'd', tx: open.tx, waitMs: 0 }, never)
        await expect(refused).rejects.toBeInstanceOf(InProgressError)
        await open.insert('after', 'after')
        const { rows } = await session.query(`select current_setting('lock_timeout') as bound`)
        expect(rows).toEqual([{ bound: '7s' }])
      })
      expect(await ids()).toEqual(['after'])
    } finally {
      await other.query('rollback')
      other.release()
    }
  })

  it('leaves the transaction usable after an error that is final, and keeps that', async () => {
    const spec = { scope, key: 'e' }
    const failure = new PermanentError('no such account')
    await transaction(async (_, open) => {
      const failed = dibs.once({ ...spec, tx: open.tx }, async () => {
        throw failure
      })
      await expect(failed).rejects.toBe(failure)
      await open.insert('after', 'after')
    })
    expect(await ids()).toEqual(['after'])
    expect(await dibs.claims.get(spec)).toMatchObject({ status: 'failed' })
    await transaction(async (_, open) => {
      const replayed = dibs.once({ ...spec, tx: open.tx }, never)
      await expect(replayed).rejects.toThrow('no such account')
    })
  })

  it('leaves the transaction usable after an error that may pass, and runs in the next', async () => {
    const failure = new TransientError('come again')
    await transaction(async (_, open) => {
      const failed = dibs.once({ scope, key: 'f', tx: open.tx }, async () => {
        throw failure
      })
      await expect(failed).rejects.toBe(failure)
      await open.insert('after', 'after')
    })
    await transaction(async (_, open) => {
      expect(await order(open, 'f')).toMatchObject({ replayed: false })
    })
    expect(await ids()).toEqual(['after', 'f'])
  })

  it('calls a winner that committed after the snapshot a conflict', async () => {
    let caught: unknown
    const failed = transaction(async (session, open) => {
      await session.query(`select id from ${schema}.items`)
      await dibs.once({ scope, key: 'g' }, async () => 1)
      await order(open, 'g').catch((error: unknown) => {
        caught = error
        throw error
      })
    }, 'repeatable read')
    await expect(failed).rejects.toThrow()
    expect(caught).toBeInstanceOf(ConflictError)
    expect(caught).toMatchObject({ sqlState: '40001', retryable: true })
    await transaction(async (_, open) => {
      expect(await dibs.once({ scope, key: 'g', tx: open.tx }, never)).toBe(1)
    })
    expect(await ids()).toEqual([])
  })
}
