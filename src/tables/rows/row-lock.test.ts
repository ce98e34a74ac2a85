import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { InvalidInputError, NotFoundError, NotInTransactionError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/index.js'

const fixture = openTables(
  `create table {shop}.account (id int primary key, balance int not null);
   create table {shop}.entry (id int primary key, account int references {shop}.account);
   create table {shop}.slot (tenant text, n int, note text, code uuid unique, primary key (tenant, n))`,
  `insert into {shop}.account select n, n * 10 from generate_series(1, 5) n;
   insert into {shop}.slot values ('a', 1, 'a1', '00000000-0000-0000-0000-000000000001'), ('a', 2, 'a2', null), ('b', 1, 'b1', null)`,
)
const { at, withClient } = fixture

describe('the rows', () => {
  it('come in the order of the ids, as they are under the lock', async () => {
    await fixture.dibs.transaction(async (tx) => {
      const rows = await fixture.dibs.rows.lock(at('account'), [3, '1', 2n], { tx })
      expect(rows).toEqual([
        { id: 3, balance: 30 },
        { id: 1, balance: 10 },
        { id: 2, balance: 20 },
      ])
    })
  })

  it('come once for each id that is given twice', async () => {
    await fixture.dibs.transaction(async (tx) => {
      const rows = await fixture.dibs.rows.lock<{ id: number }>(at('account'), [2, 1, 2], { tx })
      expect(rows.map(({ id }) => id)).toEqual([2, 1, 2])
    })
  })

  it('are named by a key of several columns, or by another unique index', async () => {
    await fixture.dibs.transaction(async (tx) => {
      const ids = [
        { n: 1, tenant: 'b' },
        { tenant: 'a', n: 2 },
      ]
      const rows = await fixture.dibs.rows.lock<{ note: string }>(at('slot'), ids, { tx })
      expect(rows.map(({ note }) => note)).toEqual(['b1', 'a2'])
      const code = '00000000-0000-0000-0000-000000000001'
      expect(await fixture.dibs.rows.lock(at('slot'), [{ code }], { tx })).toMatchObject([{ note: 'a1' }])
    })
  })

  it('are not all there where one id has two, as under an index that is damaged', async () => {
    await withClient(async (tx) => {
      await tx.query(`create table ${at('twice')} (id int, n int); create index on ${at('twice')} (id);
        insert into ${at('twice')} values (1, 1), (1, 2);
        update pg_index set indisunique = true where indrelid = '${at('twice')}'::regclass`)
      const error = await fixture.dibs.rows
        .lock(at('twice'), [{ id: 1 }, { id: 2 }], { tx })
        .catch((error) => error)
      expect(error).toBeInstanceOf(NotFoundError)
      expect(error.id).toEqual({ id: 2 })
    })
  })

  it.each([
    ['an array', 'int[]', [[2], [1, 2]], [[1, 2], [2]]],
    ['a domain over an array', '{shop}.pair', [[2], [1, 2]], [[1, 2], [2]]],
    ['a composite type', '{shop}.point', ['(2,b)', '(1,a)'], ['(1,a)', '(2,b)']],
  ])('are named by %s', async (_, type, ids, sorted) => {
    const { shop } = fixture
    const rows = ids.map(
      (id) =>
        `('${JSON.stringify(id)
          .replace(/^\[(.*)\]$/, '{$1}')
          .replaceAll('"', '')}', 1)`,
    )
    await withClient(async (tx) => {
      await tx.query(
        `create domain {shop}.pair as int[]; create type {shop}.point as (x int, y text);
         create table {shop}.odd (id ${type} primary key, n int); insert into {shop}.odd values ${rows}`.replaceAll(
          '{shop}',
          shop,
        ),
      )
      const lock = (list: readonly unknown[], options?: object) =>
        fixture.dibs.rows.lock<{ id: unknown }>(at('odd'), list as number[], { ...options, tx })
      for (const list of [ids, sorted]) {
        const found = await lock(list)
        expect(found.map(({ id }) => id)).toEqual(list)
      }
      const other = typeof ids[0] === 'string' ? '(3,c)' : [3]
      await expect(lock([ids[0], other])).rejects.toThrow(NotFoundError)
      expect(await lock([other, ids[0]], { ifMissing: 'skip' })).toMatchObject([{ id: ids[0] }])
      await tx.query('commit')
    })
    await withClient(async (holder) => {
      const lock = (tx: Tx, options?: object) =>
        fixture.dibs.rows.lock(at('odd'), [ids[0] as never], { ...options, tx })
      await holder.query(`select from ${at('odd')} for no key update`)
      const { rows: held } = await holder.query('select pg_backend_pid() as pid')
      await withClient((ours) =>
        expect(lock(ours, { ifLocked: 'fail' })).rejects.toMatchObject({
          code: 'DIBS_BUSY',
          blockers: [{ pid: held[0].pid, isSure: true }],
        }),
      )
    })
    await fixture.pool.query(`drop table ${at('odd')}; drop domain ${at('pair')}; drop type ${at('point')}`)
  })

  it('are those of after the wait', async () => {
    await withClient(async (other) => {
      await other.query(`update ${at('account')} set balance = 99 where id = 1`)
      await withClient(async (ours) => {
        const waiting = fixture.dibs.rows.lock(at('account'), [1], { tx: ours })
        await fixture.blocked(ours)
        await other.query('commit')
        expect(await waiting).toEqual([{ id: 1, balance: 99 }])
      })
    })
  })

  it('are those that were deleted and made anew by the one that was waited for', async () => {
    await withClient(async (other) => {
      await other.query(
        `delete from ${at('account')} where id = 2; insert into ${at('account')} values (2, 99)`,
      )
      await withClient(async (ours) => {
        const waiting = fixture.dibs.rows.lock(at('account'), [2, 1], { tx: ours })
        await fixture.blocked(ours)
        await other.query('commit')
        expect(await waiting).toEqual([
          { id: 2, balance: 99 },
          { id: 1, balance: 10 },
        ])
      })
    })
  })

  it('are locked in the order of the primary key, whichever index names them', async () => {
    const codes = ['8', '1'].map((digit) => `00000000-0000-0000-0000-00000000000${digit}`)
    await fixture.pool.query(`update ${at('slot')} set code = '${codes[0]}' where tenant = 'a' and n = 1;
      update ${at('slot')} set code = '${codes[1]}' where tenant = 'b'`)
    await withClient(async (other) => {
      await other.query(`select from ${at('slot')} where tenant = 'a' and n = 1 for update`)
      await withClient(async (ours) => {
        const waiting = fixture.dibs.rows.lock<{ tenant: string }>(
          at('slot'),
          codes.map((code) => ({ code })),
          { tx: ours },
        )
        await fixture.blocked(ours)
        // The one behind it is free yet.
        await other.query(`select from ${at('slot')} where tenant = 'b' for update nowait`)
        await other.query('commit')
        expect((await waiting).map(({ tenant }) => tenant)).toEqual(['a', 'b'])
      })
    })
  })

  it('are many in one statement', async () => {
    await fixture.pool.query(`insert into ${at('account')} select n, 0 from generate_series(6, 10000) n`)
    await fixture.dibs.transaction(async (tx) => {
      const ids = Array.from({ length: 10_000 }, (_, n) => 10_000 - n)
      const rows = await fixture.dibs.rows.lock<{ id: number }>(at('account'), ids, { tx })
      expect(rows.map(({ id }) => id)).toEqual(ids)
    })
  })

  it('take one round trip, and another one the first time', async () => {
    const count = (fn: (tx: Tx) => Promise<unknown>) =>
      countTraffic(fixture.pool, () => fixture.dibs.transaction(async (tx) => void (await fn(tx))))
    const { roundTrips: none } = await count(async () => {})
    await fixture.pool.query(`create table ${at('fresh')} (id int primary key)`)
    await fixture.pool.query(`insert into ${at('fresh')} values (1)`)
    const lock = (tx: Tx) => fixture.dibs.rows.lock(at('fresh'), [1], { tx })
    expect((await count(lock)).roundTrips - none).toBe(2)
    expect((await count(lock)).roundTrips - none).toBe(1)
    await fixture.pool.query(`drop table ${at('fresh')}`)
  })
})

describe('the lock', () => {
  const tryOther = (sql: string) =>
    withClient((other) =>
      other.query(`set local lock_timeout = 1; ${sql}`).then(
        () => 'done',
        (error) => error.code,
      ),
    )

  it.each([
    ['key share', { keyShare: 'done', share: 'done', update: 'done', remove: '55P03' }],
    ['share', { keyShare: 'done', share: 'done', update: '55P03', remove: '55P03' }],
    ['no key update', { keyShare: 'done', share: '55P03', update: '55P03', remove: '55P03' }],
    ['update', { keyShare: '55P03', share: '55P03', update: '55P03', remove: '55P03' }],
  ] as const)('%s keeps out what it says', async (mode, expected) => {
    await fixture.dibs.transaction(async (tx) => {
      await fixture.dibs.rows.lock(at('account'), [1], { tx, mode })
      const row = `from ${at('account')} where id = 1`
      expect({
        keyShare: await tryOther(`insert into ${at('entry')} values (1, 1)`),
        share: await tryOther(`select ${row} for share`),
        update: await tryOther(`update ${at('account')} set balance = 0 where id = 1`),
        remove: await tryOther(`delete ${row}`),
      }).toEqual(expected)
    })
  })

  it('lasts as long as the transaction', async () => {
    await fixture.dibs.transaction((tx) => fixture.dibs.rows.lock(at('account'), [1], { tx }))
    expect(await tryOther(`delete from ${at('account')} where id = 1`)).toBe('done')
  })
})

describe('a row that is not there', () => {
  it('is NotFoundError, which leaves the transaction alive and without locks', async () => {
    await withClient(async (tx) => {
      const error = await fixture.dibs.rows.lock(at('account'), [1, 7], { tx }).catch((error) => error)
      expect(error).toBeInstanceOf(NotFoundError)
      expect(error).toMatchObject({ table: at('account'), id: 7, code: 'DIBS_NOT_FOUND', status: 404 })
      expect(error.message).toBe(`There is no row 7 of table "${at('account')}". Nothing was changed.`)
      await withClient(async (third) => {
        const free = await third.query(`select from ${at('account')} where id = 1 for update skip locked`)
        expect(free.rowCount).toBe(1)
      })
      const several = await fixture.dibs.rows
        .lock(at('account'), [7, 1, 8, 9, 10], { tx })
        .catch((error) => error)
      expect(several).toMatchObject({
        id: [7, 8, 9, 10],
        subject: expect.stringContaining('rows 7, 8, 9 and 1 more'),
      })
    })
  })

  it('is left out if asked', async () => {
    await fixture.dibs.transaction(async (tx) => {
      const rows = await fixture.dibs.rows.lock<{ id: number }>(at('account'), [7, 1], {
        tx,
        ifMissing: 'skip',
      })
      expect(rows.map(({ id }) => id)).toEqual([1])
    })
  })

  it('was deleted while it was waited for', async () => {
    await withClient(async (other) => {
      await other.query(`delete from ${at('account')} where id = 1`)
      await withClient(async (ours) => {
        const waiting = fixture.dibs.rows.lock(at('account'), [1], { tx: ours }).catch((error) => error)
        await fixture.blocked(ours)
        await other.query('commit')
        expect(await waiting).toBeInstanceOf(NotFoundError)
      })
    })
  })
})

describe('refused before anything is sent', () => {
  const ask = (ids: unknown, options: object = {}) =>
    fixture.dibs.transaction((tx) =>
      fixture.dibs.rows.lock(at('account'), ids as number[], { ...options, tx }),
    )

  it.each([
    ['ids', [], {}, 'must not be empty'],
    ['ids', 1, {}, 'must be an array, not a number'],
    ['ids', Array.from({ length: 10_001 }, (_, n) => n), {}, 'must be at most 10000, not 10001'],
    ['ids[1]', [1, 'x'], {}, 'must be a whole number from -2147483648 to 2147483647, not "x"'],
    ['ids[0]', [2 ** 31], {}, 'must be a whole number'],
    ['ids[0]', [1.5], {}, 'must be a whole number'],
    ['ids[0]', [null], {}, 'must not be null'],
    ['ids[0].name', [{ name: 1 }], {}, 'names the column "name"'],
    ['mode', [1], { mode: 'exclusive' }, "must be 'key share', 'share', 'no key update' or 'update'"],
    ['waitMs', [1], { waitMs: -1 }, 'must be a whole number of milliseconds from 0'],
    ['waitMs', [1], { waitMs: 'never' }, 'must be a whole number of milliseconds'],
    ['waitMs', [1], { ifLocked: 'skip', waitMs: 5 }, "must not be given with ifLocked: 'skip'"],
    ['ifLocked', [1], { ifLocked: 'nowait' }, "must be 'wait', 'fail' or 'skip'"],
    ['ifMissing', [1], { ifMissing: 'ignore' }, "must be 'fail' or 'skip'"],
  ])('%s', async (field, ids, options, problem) => {
    const error = await ask(ids, options).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it('ids that name different columns', async () => {
    const ids = [{ tenant: 'a', n: 1 }, { code: '00000000-0000-0000-0000-000000000001' }]
    const asked = fixture.dibs.transaction((tx) => fixture.dibs.rows.lock(at('slot'), ids as never, { tx }))
    await expect(asked).rejects.toThrow('`ids[1]` must name the same columns as the others')
  })

  it('what is no transaction', async () => {
    const { lock } = fixture.dibs.rows
    for (const options of [undefined, {}, { tx: undefined }, { tx: null }])
      await expect(lock(at('account'), [1], options as never)).rejects.toThrow(NotInTransactionError)
    const pooled = await lock(at('account'), [1], { tx: fixture.pool as never }).catch((error) => error)
    expect(pooled).toBeInstanceOf(NotInTransactionError)
    expect(pooled.message).toMatch(/a pg Pool, .*: pass an open one as `tx`\.$/)
    const client = await fixture.pool.connect()
    await expect(lock(at('account'), [1], { tx: client })).rejects.toThrow(NotInTransactionError)
    client.release()
  })
})
