import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { directUrl, throughPool, until } from '../../../test/database.js'
import { itInDepth } from '../../../test/depth.js'
import { parentsAndChildren } from '../../../test/tables/parents-and-children.js'
import { Dibs } from '../../dibs.js'
import { ConnectionLostError } from '../../errors.js'
import { onEvent } from '../../postgres/events.js'

const { fixture, options, aggregate, insert } = parentsAndChildren()

describe('verify', () => {
  it('finds parents that are not what their children say, and says what is wrong with them', async () => {
    const totals = aggregate()
    await insert("(1, 1, 'COMPLETED', 5), (2, 2, 'NEW', 5)")
    await totals.recompute([1, 2])
    await fixture.pool.query(`update ${fixture.at('parent')} set total = 7, amount = 9 where id = 2`)
    const events: unknown[] = []
    const stop = onEvent('dibs:aggregate.drifted', (event) => events.push(event))
    const report = await totals.verify()
    stop()
    expect(report).toEqual({
      ...{ checked: 3, driftedCount: 1, repaired: 0, unsettled: 0 },
      drifted: [
        {
          id: '2',
          columns: { total: { stored: '7', derived: '1' }, amount: { stored: '9.00', derived: '5.00' } },
        },
      ],
    })
    expect(events).toMatchObject([{ aggregate: totals.name, count: 1, isRepaired: false }])
    expect(await fixture.rows('parent')).toMatchObject([{}, { total: 7 }, {}])
  })

  it.each([1, 2, 3, 1_000])('repairs them, %i parents at a time', async (batch) => {
    const totals = aggregate()
    await insert('(1, 1), (2, 2), (3, 3)')
    const report = await totals.verify({ repair: true, batch })
    expect(report).toMatchObject({ checked: 3, driftedCount: 3, repaired: 3, unsettled: 0 })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 1 }, { total: 1 }, { total: 1 }])
    expect(await totals.verify({ batch })).toMatchObject({ checked: 3, driftedCount: 0 })
  })

  it('takes what is marked for no drift, nor what another has locked', async () => {
    const totals = aggregate()
    await insert('(1, 1), (2, 2), (3, 3)')
    await totals.markDirty(1)
    await fixture.withClient(async (tx) => {
      await tx.query(`select from ${fixture.at('parent')} where id = 2 for update`)
      const report = await totals.verify({ repair: true })
      expect(report).toMatchObject({ checked: 3, driftedCount: 1, unsettled: 2, drifted: [{ id: '3' }] })
    })
    await totals.refresh()
  })

  it('knows null from 0', async () => {
    const totals = aggregate({ columns: { title: 'min(word)' } })
    expect(await totals.verify()).toMatchObject({ driftedCount: 0 })
    await insert("(1, 1, 'NEW', 0, 'x')")
    expect(await totals.verify()).toMatchObject({
      drifted: [{ id: '1', columns: { title: { stored: null, derived: 'x' } } }],
    })
  })

  it('has nothing to say about no parents', async () => {
    await fixture.pool.query(`delete from ${fixture.at('parent')}`)
    expect(await aggregate().verify()).toEqual({
      ...{ checked: 0, driftedCount: 0, drifted: [], repaired: 0, unsettled: 0 },
    })
  })

  it('refuses bad options', async () => {
    await expect(aggregate().verify({ batch: 0 })).rejects.toThrow(/batch` must be a whole number from 1/)
    await expect(aggregate().verify({ repair: 1 as never })).rejects.toThrow(/repair` must be true or false/)
  })

  it('goes on behind a parent whose sum does not fit its column, and says so', async () => {
    const totals = aggregate({ columns: { total: 'coalesce(sum(amount), 0)' } })
    await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 3000000000), (3, 3, 'NEW', 7)")
    const { drifted, ...report } = await totals.verify({ repair: true })
    expect(report).toEqual({ checked: 3, driftedCount: 3, repaired: 2, unsettled: 0 })
    expect(drifted).toMatchObject([
      { id: '1', columns: { total: { derived: '5' } } },
      { id: '2', columns: {}, failed: expect.stringMatching(/22003/) },
      { id: '3', columns: { total: { derived: '7' } } },
    ])
    expect(await fixture.rows('parent')).toMatchObject([{ total: 5 }, { total: 0 }, { total: 7 }])
    expect(await totals.verify()).toMatchObject({ checked: 3, driftedCount: 1, repaired: 0 })
  })

  it('does not take one that fails and is marked for a drift', async () => {
    const totals = aggregate({ columns: { total: 'coalesce(sum(amount), 0)' } })
    await insert("(2, 2, 'NEW', 3000000000)")
    await totals.markDirty(2)
    expect(await totals.verify()).toMatchObject({ checked: 3, driftedCount: 0, unsettled: 1 })
    await fixture.pool.query(`truncate ${fixture.schema.name}.aggregate_mark`)
  })

  it.each([1, 2, 1_000])('repairs the others of one that a CHECK keeps, %i at a time', async (batch) => {
    const totals = aggregate()
    await insert("(1, 1, 'NEW', 5), (2, 2, 'NEW', 5000), (3, 3, 'NEW', 7)")
    const events: unknown[] = []
    const stop = onEvent('dibs:aggregate.drifted', (event) => events.push(event))
    const { drifted, ...report } = await totals.verify({ repair: true, batch })
    stop()
    expect(report).toEqual({ checked: 3, driftedCount: 3, repaired: 2, unsettled: 0 })
    expect(events).toMatchObject([{ count: 3, isRepaired: false }])
    expect(drifted[1]).toMatchObject({ id: '2', failed: expect.stringMatching(/parent_amount_check/) })
    expect(await fixture.rows('parent')).toMatchObject([{ total: 1 }, { total: 0 }, { total: 1 }])
  })

  it('is for children whose foreign key is of a smaller type than the key', async () => {
    await fixture.pool.query(`insert into ${fixture.at('parent')} (id, total) values (3000000000, 7)`)
    expect(await aggregate().verify({ repair: true })).toMatchObject({
      ...{ checked: 4, repaired: 1 },
      drifted: [{ id: '3000000000', columns: { total: { stored: '7', derived: '0' } } }],
    })
  })

  const within = async (settings: string, fn: (dibs: Dibs) => Promise<void>): Promise<void> => {
    const pool = new pg.Pool({ connectionString: directUrl, application_name: 'verifier', options: settings })
    pool.on('error', () => {})
    const dibs = await Dibs.open({
      ...throughPool,
      pool,
      schema: fixture.schema.name,
      listen: false,
      migrate: 'off',
    })
    await fn(dibs).finally(async () => {
      await dibs.close()
      await pool.end()
    })
  }

  it('takes fewer at a time where they take too long, and goes on behind one that does by itself', async () => {
    await insert('(1, 1), (2, 2), (3, 3)')
    await within('-c statement_timeout=1000', async (dibs) => {
      const slow = (seconds: string) =>
        aggregate({ columns: { total: `count(*) + count(pg_sleep(${seconds}))` } }, dibs)
      expect(await slow('0.4').verify({ batch: 3 })).toMatchObject({ checked: 3, driftedCount: 3 })
      const { drifted, ...report } = await slow('case parent_id when 2 then 5 else 0 end').verify({
        repair: true,
      })
      expect(report).toEqual({ checked: 3, driftedCount: 3, repaired: 2, unsettled: 0 })
      expect(drifted[1]).toMatchObject({ id: '2', failed: expect.stringMatching(/statement timeout/) })
    })
  })

  it('reads each mark once, however many differ', async () => {
    const marks = 3_000
    const totals = aggregate({ columns: { total: 'count(*) + 1' } })
    await fixture.pool.query(`insert into ${fixture.at('parent')} (id) select generate_series(4, 300)`)
    await fixture.pool.query(
      `insert into ${fixture.schema.name}.aggregate_mark (aggregate, parent, id)
       select $1, $2::regclass::oid, json_build_array(g::text)::text from generate_series(201, 200 + ${marks}) g`,
      [totals.name, fixture.at('parent')],
    )
    const read = async (): Promise<number> => {
      const { rows } = await fixture.pool.query(
        `select (seq_tup_read + coalesce(idx_tup_fetch, 0))::int as read from pg_stat_user_tables where schemaname = $1 and relname = 'aggregate_mark'`,
        [fixture.schema.name],
      )
      return rows[0].read
    }
    // A session that ends has told all that it has read.
    const before = await read()
    await within('', async (dibs) => {
      const own = dibs.aggregate(totals.name, options({ columns: { total: 'count(*) + 1' } }))
      expect(await own.verify()).toMatchObject({ checked: 300, driftedCount: 200, unsettled: 100 })
    })
    await until(async () => (await read()) > before, 'what was read to be told')
    expect((await read()) - before).toBeLessThan(3 * marks)
    await fixture.pool.query(`truncate ${fixture.schema.name}.aggregate_mark`)
  })

  it('waits for a moment for whoever has a table as a whole', async () => {
    const totals = aggregate()
    await totals.recompute(1)
    await fixture.withClient(async (tx) => {
      await tx.query(`lock table ${fixture.at('child')} in access exclusive mode`)
      const verified = totals.verify()
      const waits = `select from pg_locks where relation = '${fixture.at('child')}'::regclass and not granted`
      await until(async () => (await fixture.pool.query(waits)).rowCount === 1, 'it to wait')
      await tx.query('commit')
      expect(await verified).toMatchObject({ checked: 3, driftedCount: 0 })
    })
  })

  it('tells what it has repaired, though it fails later', async () => {
    await fixture.pool.query(
      `create function ${fixture.at('refuse')}() returns trigger language plpgsql as $$
         begin if new.id = 2 then raise 'not now' using errcode = '55000'; end if; return new; end $$;
       create trigger refuse before update on ${fixture.at('parent')} for each row execute function ${fixture.at('refuse')}()`,
    )
    const events: unknown[] = []
    const stop = onEvent('dibs:aggregate.drifted', (event) => events.push(event))
    try {
      await insert('(1, 1), (2, 2)')
      await expect(aggregate().verify({ repair: true, batch: 1 })).rejects.toThrow(/not now/)
    } finally {
      stop()
      await fixture.pool.query(`drop function ${fixture.at('refuse')} cascade`)
    }
    expect(events).toMatchObject([{ count: 1, isRepaired: true }])
    expect(await fixture.rows('parent')).toMatchObject([{ total: 1 }, { total: 0 }, { total: 0 }])
  })

  const keyed = async (type: string, keys: string, fn: () => Promise<void>): Promise<void> => {
    await fixture.pool.query(
      `create table ${fixture.at('keyed')} (id ${type} primary key, total int not null default 7); insert into ${fixture.at('keyed')} (id) values ${keys};
       create table ${fixture.at('keyed_child')} (parent_id ${type})`,
    )
    await fn().finally(() =>
      fixture.pool.query(`drop table ${fixture.at('keyed')}, ${fixture.at('keyed_child')}`),
    )
  }
  const ofKeyed = () => ({
    ...{ parent: fixture.at('keyed'), child: fixture.at('keyed_child') },
    columns: { total: 'count(*)' },
  })

  it.each([
    ['double precision', "(0.1), (0.30000000000000004), (1e300 / 3), ('NaN'), ('Infinity')", 5],
    ['real', '(0.1), (0.33333334), (16777216)', 3],
    ['timestamptz', "('2024-01-01 00:00:00.000001'), ('infinity')", 2],
    ['jsonb', "('1'), ('\"a\"')", 2],
  ])('ends where the key is of the type %s, however its texts are rounded', async (type, keys, count) => {
    await keyed(type, keys, async () => {
      await within('-c extra_float_digits=0 -c DateStyle=German,DMY', async (dibs) => {
        const report = await aggregate(ofKeyed(), dibs).verify({ repair: true, batch: 1 })
        expect(report).toMatchObject({ checked: count, driftedCount: count, repaired: count, unsettled: 0 })
      })
    })
  })

  it('fails where it would not end', async () => {
    await keyed('double precision[]', "('{0.30000000000000004}'), ('{1}')", async () => {
      await within('-c extra_float_digits=0', async (dibs) => {
        const verified = aggregate(ofKeyed(), dibs).verify({ batch: 1 })
        await expect(verified).rejects.toThrow(/`parent` has a primary key that cannot be gone through/)
      })
    })
  })

  itInDepth('leaves a count its time, as a refresh does', async () => {
    await insert('(1, 1)')
    await fixture.pool.query(`update ${fixture.at('parent')} set total = 1 where id = 1`)
    const slow = () => aggregate({ columns: { total: 'count(*) + 0 * count(pg_sleep(13))' } })
    const totals = slow()
    await totals.markDirty(1)
    const [report, refreshed] = await Promise.all([slow().verify(), totals.refresh()])
    expect(report).toMatchObject({ checked: 3, driftedCount: 0, unsettled: 0 })
    expect(refreshed).toMatchObject({ recomputed: 1, failed: 0 })
  })

  it('says of a lost connection that it is lost, and not that something may have been kept', async () => {
    await insert('(1, 1)')
    await within('', async (dibs) => {
      const verified = aggregate({ columns: { total: 'count(*) + count(pg_sleep(30))' } }, dibs)
        .verify()
        .catch((reason) => reason)
      const found = () =>
        fixture.pool.query(
          `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'verifier' and wait_event = 'PgSleep'`,
        )
      await until(async () => (await found()).rowCount === 1, 'it to count')
      expect(await verified).toBeInstanceOf(ConnectionLostError)
    })
  })
})
