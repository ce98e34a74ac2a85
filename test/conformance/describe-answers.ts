import { expect, it } from 'vitest'
import { renderStatement, statement } from '../../src/postgres/statement.js'
import type { Context } from './harness.js'

export function describeAnswers({ schema, transaction, harness }: Context): void {
  it('takes the parameters of a user, by their place', async () => {
    await transaction(async (session) => {
      const { rows } = await session.query(
        `select $2::text as second_one, $1::text as first, $1::text || $1::text as twice, '$2' as literal,
          (jsonb_build_object('b', 1) ? 'b')::text as mark`,
        ['x', 'y'],
      )
      expect(rows).toEqual([{ second_one: 'y', first: 'x', twice: 'xx', literal: '$2', mark: 'true' }])
      expect((await session.query('select $1::int + 1 as n', [41])).rows).toEqual([{ n: 42 }])
      expect((await session.query('select 1 as n')).rows).toEqual([{ n: 1 }])
    })
  })

  it('gives the rows of insert, update and delete with returning', async () => {
    await transaction(async (session) => {
      const values = ['r1', 'first', 'r2', 'second']
      const insert = `insert into ${schema}.items (id, label) values ($1, $2), ($3, $4) returning id, label`
      const inserted = await session.query(insert, values)
      expect(inserted.rows).toEqual([
        { id: 'r1', label: 'first' },
        { id: 'r2', label: 'second' },
      ])
      expect(inserted.rowCount).toBe(2)
      const updated = await session.query(
        `update ${schema}.items set label = $2 where id = $1 returning id, label as new_label`,
        ['r1', 'changed'],
      )
      expect(updated).toMatchObject({ rows: [{ id: 'r1', new_label: 'changed' }], rowCount: 1 })
      const deleted = await session.query(`delete from ${schema}.items where id = $1 returning id`, ['r2'])
      expect(deleted).toMatchObject({ rows: [{ id: 'r2' }], rowCount: 1 })
    })
  })

  it('gives no rows where there are none', async () => {
    await transaction(async (session) => {
      await session.query(`insert into ${schema}.items values ('n1', 'n1'), ('n2', 'n2')`)
      const updated = await session.query(`update ${schema}.items set label = label || '!'`)
      expect(updated.rows).toEqual([])
      expect(updated.rowCount).toBe(harness.hidesCount ? null : 2)
      expect(
        (await session.query(`update ${schema}.items set label = $1 where id = $1 returning id`, ['-'])).rows,
      ).toEqual([])
      expect((await session.query(`delete from ${schema}.items`)).rows).toEqual([])
      expect((await session.query(`select id from ${schema}.items`)).rows).toEqual([])
      expect((await session.query('set local work_mem = 1024')).rows).toEqual([])
      const none = renderStatement(
        statement('delete from {schema}.items where id = $1::text returning id::text'),
        schema,
      )
      expect(await session.send(none, ['-'])).toEqual([])
    })
  })

  it('sends one statement again and again', async () => {
    await transaction(async (session) => {
      const echo = renderStatement(statement('select $1::text::text as said'), schema)
      for (const word of ['a', null, 'b']) expect(await session.send(echo, [word])).toEqual([{ said: word }])
    })
  })
}
