import { expect, it } from 'vitest'
import { ConstraintViolationError } from '../../src/errors.js'
import { joinTransaction } from '../../src/postgres/join.js'
import { renderStatement, statement } from '../../src/postgres/statement.js'
import type { Context } from './harness.js'

export function describeTransactions({ schema, transaction, ids }: Context): void {
  const insert = renderStatement(
    statement('insert into {schema}.items (id, label) values ($1::text, $2::text) returning id::text'),
    schema,
  )

  it('commits together', async () => {
    await transaction(async (session, open) => {
      await session.send(insert, ['ours', 'ours'])
      await open.insert('theirs', 'theirs')
      expect(await ids()).toEqual([])
      const { rows } = await session.query(`select id from ${schema}.items order by id`)
      expect(rows).toEqual([{ id: 'ours' }, { id: 'theirs' }])
    })
    expect(await ids()).toEqual(['ours', 'theirs'])
  })

  it('rolls back together, and leaves the connection to the next', async () => {
    for (const round of [1, 2, 3]) {
      const failure = new Error(`round ${round}`)
      const failed = transaction(async (session, open) => {
        await session.send(insert, ['ours', 'ours'])
        await open.insert('theirs', 'theirs')
        throw failure
      })
      await expect(failed).rejects.toBe(failure)
    }
    expect(await ids()).toEqual([])
    await transaction((session) => session.send(insert, ['next', 'next']))
    expect(await ids()).toEqual(['next'])
  })

  it('leaves the connection to the next after an error of the server', async () => {
    for (const _ of [1, 2, 3]) {
      const failed = transaction(async (session) => {
        await session.send(insert, ['a', 'a'])
        await session.query('select 1 / 0')
      })
      await expect(failed).rejects.toMatchObject({ sqlState: '22012' })
    }
    await transaction((session) => session.send(insert, ['next', 'next']))
    expect(await ids()).toEqual(['next'])
  })

  it('goes on after an error inside a savepoint', async () => {
    await transaction(async (session, open) => {
      await session.send(insert, ['a', 'a'])
      const failed = open.savepoint(async (inner) => {
        const nested = await joinTransaction(inner, { prepared: false })
        await nested.send(insert, ['b', 'b'])
        await nested.send(insert, ['a', 'again'])
      })
      await expect(failed).rejects.toBeInstanceOf(ConstraintViolationError)
      await open.savepoint(async (inner) => {
        await inner.query(`insert into ${schema}.items values ($1, $2)`, ['c', 'c'])
      })
      await session.send(insert, ['d', 'd'])
    })
    expect(await ids()).toEqual(['a', 'c', 'd'])
  })
}
