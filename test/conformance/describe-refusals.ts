import { expect, it } from 'vitest'
import { NotInTransactionError } from '../../src/errors.js'
import type { Tx } from '../../src/postgres/executor.js'
import type { JoinedTransaction } from '../../src/postgres/joined-transaction.js'
import type { Context } from './harness.js'

export function describeRefusals({ schema, transaction, ids, impostors, harness }: Context): void {
  const adapt = (given: unknown): Tx => {
    if (!harness.adapt) throw new Error('no adapter')
    return harness.adapt(given as never)
  }
  const write = `insert into ${schema}.items values ('late', 'late')`

  it.each([
    ['undefined', undefined],
    ['null', null],
    ['a string', 'tx'],
    ['a plain object', {}],
  ])('refuses %s', (said, given) => {
    const attempt = () => adapt(given)
    expect(attempt).toThrow(NotInTransactionError)
    expect(attempt).toThrow(`it is ${said}. Pass`)
  })

  it('refuses what the library offers besides', () => {
    for (const [said, given] of Object.entries(impostors())) {
      expect(() => adapt(given), said).toThrow(NotInTransactionError)
      expect(() => adapt(given), said).toThrow(`it is ${said}. Pass`)
    }
    expect(Object.keys(impostors())).not.toEqual([])
  })

  it('refuses to run after the commit, also inside of the next transaction', async () => {
    let late: JoinedTransaction | undefined
    await transaction(async (session) => {
      late = session
    })
    await expect(late?.query(write)).rejects.toBeInstanceOf(NotInTransactionError)
    await transaction(async (session) => {
      await session.query('select 1 as n')
      await expect(late?.query(write)).rejects.toBeInstanceOf(NotInTransactionError)
    })
    expect(await ids()).toEqual([])
  })

  it('does not let a forgotten await slip out unseen behind the commit', async () => {
    let forgotten: Promise<unknown> | undefined
    await transaction(async (session) => {
      await session.query('select 1 as n')
      forgotten = (async () => {
        await session.query('select 2 as n') // the library commits meanwhile
        await session.query(write)
      })()
      forgotten.catch(() => {})
    })
    await expect(forgotten).rejects.toBeInstanceOf(NotInTransactionError)
  })

  it('refuses to run after the rollback', async () => {
    let late: JoinedTransaction | undefined
    const failed = transaction(async (session) => {
      late = session
      await session.query(write)
      throw new Error('on purpose')
    })
    await expect(failed).rejects.toThrow('on purpose')
    await expect(late?.query(write)).rejects.toBeInstanceOf(NotInTransactionError)
    expect(await ids()).toEqual([])
  })
}
