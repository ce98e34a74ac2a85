import { expect, it } from 'vitest'
import {
  ConflictError,
  ConnectionLostError,
  ConstraintViolationError,
  DatabaseError,
} from '../../src/errors.js'
import { until } from '../database.js'
import type { Context } from './harness.js'

export function describeErrors({ schema, admin, transaction, ids }: Context): void {
  /** The error of one statement in a transaction of its own. */
  async function refusal(text: string, values: unknown[] = []): Promise<unknown> {
    let caught: unknown
    const failed = transaction(async (session) => {
      await session.query(text, values).catch((error: unknown) => {
        caught = error
        throw error
      })
    })
    await expect(failed).rejects.toThrow()
    return await until(() => caught, 'the error of the statement')
  }

  /** postgres.js gives the error of a lost connection once more to whoever comes next, hence the second chance. */
  async function recovered(): Promise<void> {
    const write = () =>
      transaction((session) => session.query(`insert into ${schema}.items values ('next', 'next')`))
    await write().catch(write)
    expect(await ids()).toEqual(['next'])
  }

  it('names the unique constraint', async () => {
    await admin.query(`insert into ${schema}.items values ('u', 'taken')`)
    const error = await refusal(`insert into ${schema}.items values ($1, $2)`, ['v', 'taken'])
    expect(error).toBeInstanceOf(ConstraintViolationError)
    expect(error).toMatchObject({ sqlState: '23505', kind: 'unique', constraint: 'items_label_once' })
  })

  it('names the column that must not be null', async () => {
    const error = await refusal(`insert into ${schema}.items (id) values ($1)`, ['x'])
    expect(error).toBeInstanceOf(ConstraintViolationError)
    expect(error).toMatchObject({ sqlState: '23502', kind: 'not null', column: 'label' })
  })

  it('calls a serialization failure a conflict', async () => {
    await admin.query(`insert into ${schema}.items values ('s', 'before')`)
    let caught: unknown
    const failed = transaction(async (session) => {
      await session.query(`select id from ${schema}.items`)
      await admin.query(`update ${schema}.items set label = 'between'`)
      await session
        .query(`update ${schema}.items set label = $1 where id = $2`, ['after', 's'])
        .catch((error) => {
          caught = error
          throw error
        })
    }, 'repeatable read')
    await expect(failed).rejects.toThrow()
    expect(caught).toBeInstanceOf(ConflictError)
    expect(caught).toMatchObject({ sqlState: '40001', retryable: true })
  })

  it('calls a deadlock a conflict', async () => {
    const error = await refusal(`do $$ begin raise exception 'as if' using errcode = '40P01'; end $$`)
    expect(error).toBeInstanceOf(ConflictError)
    expect(error).toMatchObject({ sqlState: '40P01' })
  })

  it('keeps the code of any other refusal', async () => {
    const error = await refusal(`select * from ${schema}.absent`)
    expect(error).toBeInstanceOf(DatabaseError)
    expect(error).toMatchObject({ sqlState: '42P01' })
  })

  it('knows a connection that is ended under a statement', async () => {
    expect(await refusal('select pg_terminate_backend(pg_backend_pid())::text as ended')).toBeInstanceOf(
      ConnectionLostError,
    )
    await recovered()
  })

  it('knows a connection that was ended between two statements', async () => {
    let caught: unknown
    const failed = transaction(async (session) => {
      const { rows } = await session.query('select pg_backend_pid() as pid')
      await admin.query('select pg_terminate_backend($1, 5000)', [rows[0]?.pid])
      await session.query('select 1 as n').catch((error: unknown) => {
        caught = error
        throw error
      })
    })
    await expect(failed).rejects.toThrow()
    expect(await until(() => caught, 'the error of the statement')).toBeInstanceOf(ConnectionLostError)
    await recovered()
  })
}
