import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { directUrl, freshName, throughPool } from '../../../test/database.js'
import { openTables } from '../../../test/tables/open-tables.js'
import { Dibs } from '../../dibs.js'
import { DatabaseError, InvalidInputError } from '../../errors.js'

const fixture = openTables(
  `create table {shop}.parent (id bigint primary key, total int not null default 0);
   create table {shop}.child (id int primary key, parent_id int, tenant text);
   create index on {shop}.child (parent_id)`,
  'insert into {shop}.parent (id) values (1), (2), (3)',
)

let made = 0
const aggregate = (dibs: Dibs = fixture.dibs, columns: Record<string, string> = { total: 'count(*)' }) =>
  dibs.aggregate<Record<string, unknown>>(`rights-${++made}`, {
    ...{ parent: fixture.at('parent'), child: fixture.at('child'), foreignKey: 'parent_id', columns },
  })
const run = (sql: string) => fixture.pool.query(sql.replaceAll('{shop}', fixture.shop))

/** `before` makes what is undone by `after`; both name the role as `{role}`. */
async function asRole(
  before: string,
  after: string,
  fn: (dibs: Dibs, role: string) => Promise<void>,
): Promise<void> {
  const role = freshName('clerk')
  const schema = fixture.schema.name
  await run(
    `create role ${role} nologin; grant usage on schema {shop}, ${schema} to ${role};
     grant all on all tables in schema ${schema} to ${role}; grant usage on all sequences in schema ${schema} to ${role};
     ${before.replaceAll('{role}', role)}`,
  )
  const pool = new pg.Pool({ connectionString: directUrl, options: `-c role=${role}` })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ ...throughPool, pool, schema, listen: false, migrate: 'off' })
  try {
    await fn(dibs, role)
  } finally {
    await dibs.close()
    await pool.end()
    await run(`${after}; drop owned by ${role}; drop role ${role}; delete from ${schema}.aggregate_mark`)
  }
}

describe('a role that a policy may hide children from', () => {
  const tenants = [
    `grant all on all tables in schema {shop} to {role}; alter table {shop}.child enable row level security;
     create policy of_tenant on {shop}.child using (tenant = current_setting('app.tenant', true))`,
    'drop policy of_tenant on {shop}.child; alter table {shop}.child disable row level security',
  ] as const
  const refused = /`child` names .*child, whose row level security applies to this role.*BYPASSRLS/

  it('counts none, and is told what to do', async () => {
    await run("insert into {shop}.child values (1, 1, 'a'), (2, 1, 'b')")
    await aggregate().recompute(1)
    await asRole(...tenants, async (dibs) => {
      const totals = aggregate(dibs)
      await expect(totals.recompute(1)).rejects.toThrow(refused)
      await expect(totals.recompute([1, 2])).rejects.toThrow(InvalidInputError)
      await expect(totals.verify()).rejects.toThrow(refused)
      await expect(totals.verify({ repair: true })).rejects.toThrow(InvalidInputError)
      await totals.markDirty(1)
      await expect(totals.refresh()).rejects.toThrow(refused)
      const { rows } = await run(`select count(*)::int as n from ${fixture.schema.name}.aggregate_mark`)
      expect(rows).toEqual([{ n: 1 }])
    })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 2 }, { total: 0 }, { total: 0 }])
  })

  it('is noticed at each call, and leaves the transaction alive', async () => {
    const totals = aggregate()
    await run("insert into {shop}.child values (1, 1, 'a')")
    await totals.recompute(1)
    await asRole(...tenants, async (_, role) => {
      await fixture.withClient(async (tx) => {
        await totals.recompute(1, { tx })
        await tx.query(`set local role ${role}`)
        await expect(totals.recompute(1, { tx })).rejects.toThrow(refused)
        await tx.query('reset role')
        expect(await totals.recompute(1, { tx })).toMatchObject({ total: 1 })
      })
    })
  })
})

describe('a role with few rights', () => {
  it('can mark, and is told of rights where it cannot count', async () => {
    await asRole('', 'select 1', async (dibs) => {
      const totals = aggregate(dibs)
      await totals.markDirty(1)
      const refused = await totals.recompute(1).catch((error) => error)
      expect(refused).toBeInstanceOf(DatabaseError)
      expect(refused).toMatchObject({
        sqlState: '42501',
        message: expect.stringMatching(/permission denied/),
      })
      await expect(totals.derived(fixture.at('of_few'))).rejects.toMatchObject({ sqlState: '42501' })
      const { rows } = await run(`select id from ${fixture.schema.name}.aggregate_mark`)
      expect(rows).toEqual([{ id: '["1"]' }])
    })
  })

  it('is told of parents that it may read and not write', async () => {
    await run('insert into {shop}.child values (1, 1), (2, 2), (3, 3)')
    await asRole(
      `grant all on all tables in schema {shop} to {role}; alter table {shop}.parent enable row level security;
       create policy reads on {shop}.parent for select using (true); create policy writes on {shop}.parent for update using (id <> 1)`,
      'drop policy reads on {shop}.parent; drop policy writes on {shop}.parent; alter table {shop}.parent disable row level security',
      async (dibs) => {
        const totals = aggregate(dibs)
        await fixture.withClient(async (tx) => {
          await tx.query(`select from ${fixture.at('parent')} where id = 2 for update`)
          const { drifted, ...report } = await totals.verify({ repair: true })
          expect(report).toEqual({ checked: 3, driftedCount: 2, repaired: 1, unsettled: 1 })
          expect([...drifted].sort((a, b) => Number(a.id) - Number(b.id))).toMatchObject([
            { id: '1', failed: expect.stringMatching(/policy/) },
            { id: '3', columns: { total: { derived: '1' } } },
          ])
        })
        expect(await totals.verify()).toMatchObject({ driftedCount: 2, unsettled: 0 })
      },
    )
  })

  it('may ask again for a view that is there, and belongs to another', async () => {
    const view = fixture.at('of_another')
    await aggregate().derived(view)
    await asRole(
      'grant all on all tables in schema {shop} to {role}; grant create on schema {shop} to {role}',
      'drop view {shop}.of_another',
      async (dibs) => {
        expect(await aggregate(dibs).derived(view)).toContain('create or replace view')
        await expect(aggregate(dibs, { total: 'count(*) + 1' }).derived(view)).rejects.toMatchObject({
          ...{ sqlState: '42501', message: expect.stringMatching(/must be owner/) },
        })
        const { rows } = await run("select from pg_class where relname = 'dibs_like'")
        expect(rows).toEqual([])
      },
    )
  })
})
