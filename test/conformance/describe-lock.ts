import { afterAll, beforeAll, expect, it } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { FenceLostError } from '../../src/errors.js'
import { throughPool } from '../database.js'
import type { Context } from './harness.js'

export function describeLock({ schema, admin, transaction, ids }: Context): void {
  let dibs: Dibs
  beforeAll(async () => {
    dibs = await Dibs.open({ ...throughPool, pool: admin, schema, listen: false })
  })
  afterAll(() => dibs.close())

  it('guards the transaction: it commits under the lock, and not once that is another’s', async () => {
    const lock = await dibs.lock('🦊')
    await transaction(async (session, { tx, insert }) => {
      await lock.guard(tx)
      await insert('in time', 'in time')
      // The server ends an idle transaction, except where that would end the process.
      const { rows } = await session.query(
        "select current_setting('idle_in_transaction_session_timeout')::text as limit",
      )
      expect(rows).toEqual([{ limit: session.hasNoErrorListener ? '0' : '30s' }])
      // The lock is taken away. It has no new holder before this transaction has ended.
      await dibs.locks.forceRelease('🦊')
      expect(await dibs.tryLock('🦊')).toBeNull()
    })
    for (const isolation of [undefined, 'repeatable read'] as const) {
      const late = transaction(async (_, { tx, insert }) => {
        await insert('late', 'late')
        await lock.guard(tx)
      }, isolation)
      await expect(late).rejects.toThrow(FenceLostError)
    }
    expect(await ids()).toEqual(['in time'])
  })
}
