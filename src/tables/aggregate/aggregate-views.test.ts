import { describe, expect, it } from 'vitest'
import { freshName, until } from '../../../test/database.js'
import { parentsAndChildren } from '../../../test/tables/parents-and-children.js'
import { BusyError, InvalidInputError } from '../../errors.js'

const { fixture, aggregate, insert } = parentsAndChildren()

describe('derived', () => {
  it('makes a view that is always right, and says how', async () => {
    const totals = aggregate()
    const sql = await totals.derived(fixture.at('parent_totals'))
    expect(sql).toMatch(/^create or replace view/)
    await insert("(1, 1, 'COMPLETED', 5)")
    const { rows } = await fixture.pool.query(
      `select id, title, total, completed, amount from ${fixture.at('parent_totals')} order by id`,
    )
    expect(rows[0]).toEqual({ id: '1', title: null, total: 1, completed: 1, amount: '5.00' })
    expect(rows).toHaveLength(3)
  })

  it('needs none of the columns, and can be only told', async () => {
    const totals = aggregate({ columns: { lines_of_it: 'count(*)' } })
    const sql = await totals.derived('of_it', { create: false })
    await fixture.withClient(async (tx) => {
      await tx.query(sql.replace('"of_it"', fixture.at('of_it')))
      expect((await tx.query(`select lines_of_it from ${fixture.at('of_it')} where id = 1`)).rows).toEqual([
        { lines_of_it: '0' },
      ])
    })
    await expect(totals.recompute(1)).rejects.toThrow(/lines_of_it/)
  })

  it('can be made by all who start at once', async () => {
    const totals = aggregate()
    const waitMs = 30_000
    await Promise.all(Array.from({ length: 8 }, () => totals.derived(fixture.at('made_by_all'), { waitMs })))
    const view = fixture.at('made_by_two')
    await fixture.withClient(async (tx) => {
      await totals.derived(view, { tx })
      const other = totals.derived(view, { waitMs })
      const waits = `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%${fixture.schema.name}%aggregate_create_view%'`
      await until(async () => (await fixture.pool.query(waits)).rowCount === 1, 'the other to wait')
      await tx.query('commit')
      expect(await other).toContain('create or replace view')
    })
  })

  it('does not wait for ever for those who read it', async () => {
    const totals = aggregate()
    await totals.derived(fixture.at('read'))
    await fixture.withClient(async (tx) => {
      await tx.query(`select from ${fixture.at('read')}`)
      await expect(totals.derived(fixture.at('read'), { waitMs: 50 })).rejects.toThrow(BusyError)
    })
  })

  it('refuses what is no aggregate', async () => {
    await expect(aggregate({ columns: { x: 'amount' } }).derived('x')).rejects.toThrow(/must be an aggregate/)
  })

  it('is as the parent would have kept it, and cuts nothing off', async () => {
    const view = fixture.at('typed')
    await aggregate({ columns: { total: 'count(*)', title: 'min(word)', other: 'count(*)' } }).derived(view)
    await insert("(1, 1, 'NEW', 0, 'abcdefgh')")
    const { rows } = await fixture.pool.query(
      `select pg_typeof(total)::text as total, pg_typeof(other)::text as other, title from ${view} where id = 1`,
    )
    expect(rows).toEqual([{ total: 'integer', other: 'bigint', title: 'abcdefgh' }])
  })

  it('is for children whose foreign key is of a smaller type than the key', async () => {
    await fixture.pool.query(`insert into ${fixture.at('parent')} (id) values (3000000000)`)
    const view = fixture.at('of_large')
    await aggregate().derived(view)
    expect((await fixture.pool.query(`select id, total from ${view} where total = 0`)).rowCount).toBe(4)
    await fixture.withClient(async (tx) => {
      await tx.query('set local enable_seqscan = off; set local enable_bitmapscan = off')
      const { rows } = await tx.query(`explain select total from ${view} where id = 1`)
      expect(JSON.stringify(rows)).toMatch(/Index Cond: \((child\.)?parent_id = /)
    })
  })

  it('gets the columns that the parent has got since, whatever is known of the table', async () => {
    const totals = aggregate()
    const view = fixture.at('grown')
    await totals.recompute(1)
    await totals.derived(view)
    await fixture.pool.query(`alter table ${fixture.at('parent')} add column note text default 'new'`)
    try {
      await totals.derived(view)
      const { rows } = await fixture.pool.query(`select * from ${view} where id = 1`)
      expect(Object.keys(rows[0])).toEqual(['id', 'total', 'completed', 'amount', 'title', 'note'])
    } finally {
      await fixture.pool.query(`drop view ${view}; alter table ${fixture.at('parent')} drop column note`)
    }
  })

  it('says what to do where another has the name, and leaves the transaction alive', async () => {
    const view = fixture.at('another')
    await aggregate({ columns: { lines: 'count(*)' } }).derived(view)
    await fixture.withClient(async (tx) => {
      const refused = aggregate().derived(view, { tx })
      await expect(refused).rejects.toThrow(InvalidInputError)
      await expect(refused).rejects.toThrow(/`view` .*42P16: .*Drop it/)
      await expect(aggregate().derived(fixture.at('child'), { tx })).rejects.toThrow(/`view` .*42809/)
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
  })

  it('shows what the reader may see, where the server knows how', async () => {
    const { rows: found } = await fixture.pool.query(
      "select current_setting('server_version_num')::int as version",
    )
    const role = freshName('reader')
    const view = fixture.at('seen')
    const sql = await aggregate().derived(view)
    if (found[0].version < 150_000) return expect(sql).not.toContain('security_invoker')
    await fixture.pool.query(
      `create role ${role} nologin; grant usage on schema ${fixture.shop} to ${role}; grant select on all tables in schema ${fixture.shop} to ${role};
       alter table ${fixture.at('parent')} enable row level security; create policy one on ${fixture.at('parent')} using (id = 2)`,
    )
    try {
      await fixture.withClient(async (tx) => {
        await tx.query(`set local role ${role}`)
        expect((await tx.query(`select id from ${view}`)).rows).toEqual([{ id: '2' }])
      })
    } finally {
      await fixture.pool.query(
        `drop policy one on ${fixture.at('parent')}; alter table ${fixture.at('parent')} disable row level security; drop owned by ${role}; drop role ${role}`,
      )
    }
  })
})
