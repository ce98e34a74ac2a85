import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { startAnswerCutter } from '../../../test/answer-cutter.js'
import { createRole, directUrl, freshName, throughPool, url, withPool } from '../../../test/database.js'
import { openTables } from '../../../test/tables/open-tables.js'
import { Dibs } from '../../dibs.js'
import { CommitOutcomeUnknownError, ConnectionLostError, NotWrittenError } from '../../errors.js'
import { type DibsEventName, type DibsEvents, onEvent } from '../../postgres/events.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { countTraffic } from '../../testing/index.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'
import type { MonitorOptions } from './monitor-options.js'

const NOW = new Date('2030-01-01T12:00:00Z')
const fixture = openTables(
  `create type {shop}.state as enum ('PENDING', 'PROCESSING', 'EXECUTING', 'FAILED', 'DONE');
   create table {shop}.item (
     id int primary key, status text not null, updated_at timestamptz, lease_until timestamptz, attempts int, error text, fence bigint,
     note text, day date, failed_at timestamptz
   );
   create table {shop}.typed (tenant uuid, id varchar(9), status {shop}.state, at timestamp, done_at timestamp, primary key (tenant, id));
   create table {shop}.part (id bigint, day date, status varchar(20), at timestamptz, primary key (day, id)) partition by range (day);
   create table {shop}.part_1 partition of {shop}.part for values from ('2030-01-01') to ('2030-02-01');
   create table {shop}.part_2 partition of {shop}.part for values from ('2030-02-01') to ('2030-03-01');
   create table {shop}.bare (status text, at timestamptz);
   create table {shop}.ancient (id float8, few float4, status text, at timestamptz, local timestamp, primary key (id, few));
   create table {shop}.listed (id float8[] primary key, status text, at timestamptz);
   create function {shop}.swallow() returns trigger language plpgsql as 'begin return null; end';
   create trigger swallow before update on {shop}.ancient for each row execute function {shop}.swallow();
   create trigger swallow before update on {shop}.listed for each row execute function {shop}.swallow()`,
)
const { at } = fixture

let count = 0
const MINUTES = 60_000
const optionsOf = (options: Partial<MonitorOptions>) =>
  ({
    table: at('item'),
    stuck: 'PROCESSING',
    timeColumn: 'updated_at',
    olderThanMs: 5 * MINUTES,
    action: 'requeue',
    requeueTo: 'PENDING',
    ...options,
  }) as MonitorOptions
const newName = (): string => `monitor ${++count}`
const define = (options: Partial<MonitorOptions> = {}) => fixture.dibs.monitor(newName(), optionsOf(options))
/** On another way to the server. */
const beside = (connectionString: string, work: (dibs: Dibs) => Promise<unknown>) =>
  withPool(
    async (pool) => {
      const schema = fixture.schema.name
      await using dibs = await Dibs.open({
        ...throughPool,
        pool,
        schema,
        migrate: 'off',
        listen: false,
      })
      await work(dibs)
    },
    { connectionString },
  )
const failing = { action: 'fail', requeueTo: undefined, failTo: 'FAILED' } as const
const none = { requeued: 0, failed: 0, handled: 0, left: 0, errors: 0, withoutTime: 0, isMore: false }

/** Rows of the table `item`, that many minutes old. */
async function put(...rows: readonly Record<string, unknown>[]): Promise<void> {
  await fixture.schema.clock.freeze(NOW)
  for (const [n, { ago = 10, ...row }] of rows.entries()) {
    const all = {
      ...{ id: n + 1, status: 'PROCESSING' },
      updated_at: ago === null ? null : new Date(NOW.getTime() - Number(ago) * MINUTES),
      ...row,
    }
    const places = Object.keys(all).map((_, place) => `$${place + 1}`)
    await fixture.pool.query(
      `insert into ${at('item')} (${Object.keys(all)}) values (${places})`,
      Object.values(all),
    )
  }
}
const statuses = async () => (await fixture.rows('item')).map(({ status }) => status)

/** Returns the events with this name that are emitted during `work`. */
async function heard<N extends DibsEventName>(
  name: N,
  work: () => Promise<unknown>,
): Promise<DibsEvents[N][]> {
  const all: DibsEvents[N][] = []
  const stop = onEvent(name, (event) => all.push(event))
  await work()
  stop()
  return all
}

describe('a row that the database refuses', () => {
  it('for want of a right that only this row needs fails alone', async () => {
    await put({ ago: 30 }, { ago: 20 }, { ago: 10 })
    await fixture.pool.query(
      `create function ${at('refuse')}() returns trigger language plpgsql as $$
         begin raise insufficient_privilege using message = 'not this one'; end $$;
       create trigger refuse before update on ${at('item')} for each row when (old.id = 1) execute function ${at('refuse')}()`,
    )
    try {
      expect(await define().run()).toMatchObject({ requeued: 2, errors: 1 })
      expect(await statuses()).toEqual(['PROCESSING', 'PENDING', 'PENDING'])
    } finally {
      await fixture.pool.query(`drop function ${at('refuse')} cascade`)
    }
  })

  it.each([
    { why: 'it takes no writes at all', condition: 'read_only_sql_transaction', told: /25006/ },
    { why: 'there is no room on the disk', condition: 'disk_full', told: /room on the server/ },
  ])('since $why ends the run', async ({ condition, told }) => {
    await put({ ago: 30 }, { ago: 20 })
    const monitor = define()
    await fixture.pool.query(
      `create function ${at('refuse')}() returns trigger language plpgsql as $$
         begin raise ${condition}; end $$;
       create trigger refuse before update on ${at('item')} for each row execute function ${at('refuse')}()`,
    )
    try {
      const events = await heard('dibs:monitor.row-failed', () => expect(monitor.run()).rejects.toThrow(told))
      expect(events).toEqual([])
    } finally {
      await fixture.pool.query(`drop function ${at('refuse')} cascade`)
    }
  })
})

describe('a run goes on behind each row that it cannot change, whatever the session is set to', () => {
  const settings = '-c extra_float_digits=-5 -c datestyle=SQL,DMY -c timezone=Europe/Amsterdam'
  const rounding = (work: (dibs: Dibs) => Promise<void>) =>
    withPool(
      async (pool) => {
        await using dibs = await Dibs.open({
          ...throughPool,
          pool,
          schema: fixture.schema.name,
          migrate: 'off',
        })
        await work(dibs)
      },
      { connectionString: directUrl, options: settings },
    )
  const options = { stuck: 'PROCESSING', olderThanMs: 1_000, requeueTo: 'PENDING', batch: 1 }
  const times = [
    '-infinity',
    '4713-01-01 00:00:00.000001+00 BC',
    '4713-01-01 00:00:00.000002+00 BC',
    '0999-05-05 00:00:00.123455+00',
    '0999-05-05 00:00:00.123456+00',
    '1890-05-05 00:00:00.000001+00',
    '2020-10-25 00:30:00.000001+00',
    '2020-10-25 01:30:00.000001+00',
  ]
  const keys = ['-infinity', '-0', '1e-310', '0.3', '0.30000000000000004', '3e300', 'NaN']

  it.each([
    ['batches', 'at', undefined, 'errors'],
    ['batches by a local time', 'local', 'UTC', 'errors'],
    ['a function', 'at', undefined, 'left'],
    ['a function by a local time', 'local', 'UTC', 'left'],
  ] as const)('by %s', async (_, timeColumn, timeZone, count) => {
    await fixture.pool.query(
      `insert into ${at('ancient')} select k::float8, (row_number() over ())::float4 / 3, 'PROCESSING', t::timestamptz, t::timestamptz at time zone 'UTC'
       from unnest($1::text[]) k, unnest($2::text[]) t`,
      [keys, times],
    )
    const action = count === 'left' ? () => 'leave' : 'requeue'
    await rounding(async (dibs) => {
      const monitor = dibs.monitor(newName(), {
        ...{ ...options, table: at('ancient'), timeColumn, timeZone, action },
      } as MonitorOptions)
      expect(await monitor.run()).toMatchObject({ ...none, [count]: keys.length * times.length })
    })
  })

  it('but ends where a key of several numbers is rounded', async () => {
    await fixture.pool.query(
      `insert into ${at('listed')} values ('{0.30000000000000004}', 'PROCESSING', '2020-01-01'), ('{0.4}', 'PROCESSING', '2020-01-02')`,
    )
    await rounding(async (dibs) => {
      for (const action of ['requeue', () => 'leave']) {
        const name = typeof action
        const monitor = dibs.monitor(name, {
          ...{ ...options, table: at('listed'), timeColumn: 'at', action },
        } as MonitorOptions)
        const { errors, left, isMore } = await monitor.run()
        expect({ name, done: errors + left, isMore }).toEqual({ name, done: 2, isMore: true })
      }
    })
  })
})

describe('which rows', () => {
  it('those in a state, older than that, by the clock of the database', async () => {
    await put({ ago: 10 }, { ago: 4.9 }, { ago: 5 }, { ago: 5.01 }, { ago: 60, status: 'DONE' })
    const report = await define().run()
    expect(report).toEqual({
      ...none,
      ...{ name: expect.any(String), requeued: 2, oldestMs: 10 * MINUTES, tookMs: expect.any(Number) },
    })
    expect(await statuses()).toEqual(['PENDING', 'PROCESSING', 'PROCESSING', 'PENDING', 'DONE'])
  })

  it('in several states', async () => {
    await put({}, { status: 'EXECUTING' }, { status: 'DONE' }, { status: 'EXECUTING', ago: 1 })
    expect(await define({ stuck: ['PROCESSING', 'EXECUTING'] }).run()).toMatchObject({ requeued: 2 })
    expect(await statuses()).toEqual(['PENDING', 'PENDING', 'DONE', 'EXECUTING'])
  })

  it('never one whose lease says that it is alive, however old it is', async () => {
    const lease = (ms: number) => ({ lease_until: new Date(NOW.getTime() + ms), ago: 9_999 })
    await put(lease(1), lease(0), lease(-1), { ago: 9_999 }, { ago: 1, lease_until: new Date(0) })
    expect(await define({ leaseColumn: 'lease_until' }).run()).toMatchObject({
      requeued: 3,
      oldestMs: 9_999 * MINUTES,
    })
    expect(await statuses()).toEqual(['PROCESSING', 'PENDING', 'PENDING', 'PENDING', 'PROCESSING'])
  })

  it('never one without a time, which is counted', async () => {
    await put({ ago: null }, { ago: null, status: 'DONE' }, {})
    expect(await define().run()).toMatchObject({ requeued: 1, withoutTime: 1 })
    expect(await define().run()).toMatchObject({ requeued: 0, withoutTime: 1, oldestMs: 0 })
  })

  it('those that are infinitely old are, and those that will be are not', async () => {
    await put({ updated_at: '-infinity' }, { updated_at: 'infinity' }, { ago: -10 })
    expect(await define({ batch: 1 }).run()).toMatchObject({
      requeued: 1,
      oldestMs: Number.POSITIVE_INFINITY,
    })
    expect(await define().run()).toMatchObject({ requeued: 0, oldestMs: 0 })
    expect(await statuses()).toEqual(['PENDING', 'PROCESSING', 'PROCESSING'])
  })

  it('never one that somebody has locked, and nobody is waited for', async () => {
    await put({}, {}, {})
    await fixture.withClient(async (other) => {
      await other.query(`select from ${at('item')} where id = 2 for no key update`)
      expect(await define().run()).toMatchObject({ requeued: 2, errors: 0 })
    })
    expect(await statuses()).toEqual(['PENDING', 'PROCESSING', 'PENDING'])
  })

  it('each has one effect, of any number of monitors', async () => {
    await put(...Array.from({ length: 30 }, () => ({ attempts: 0 })))
    const counted = { attemptsColumn: 'attempts', maxAttempts: 9, failTo: 'FAILED', batch: 7 }
    const reports = await Promise.all(Array.from({ length: 8 }, () => define(counted).run()))
    expect(reports.reduce((sum, { requeued }) => sum + requeued, 0)).toBeLessThanOrEqual(30)
    // The first runs skip rows that are locked at that moment. This run changes them.
    await define(counted).run()
    expect((await fixture.rows('item')).map(({ attempts }) => attempts)).toEqual(Array(30).fill(1))
  })
})

describe('requeue', () => {
  it('counts the attempt that was lost, and fails a row that was tried as often as it may be', async () => {
    await put({ attempts: null }, { attempts: 1 }, { attempts: 2 }, { attempts: 7, error: 'old' })
    const counted = { attemptsColumn: 'attempts', failTo: 'FAILED', errorColumn: 'error' } as const
    expect(await define(counted).run()).toMatchObject({ requeued: 2, failed: 2 })
    const error = 'Processing timeout - worker may have crashed'
    expect(await fixture.rows('item')).toMatchObject([
      { status: 'PENDING', attempts: 1, error: null },
      { status: 'PENDING', attempts: 2, error: null },
      { status: 'FAILED', attempts: 3, error },
      { status: 'FAILED', attempts: 8, error },
    ])
  })

  it('counts nothing where whoever takes rows counts', async () => {
    await put({ attempts: 2 }, { attempts: 3 })
    const counted = { attemptsColumn: 'attempts', countsAttempts: false, maxAttempts: 3, failTo: 'FAILED' }
    expect(await define(counted).run()).toMatchObject({ requeued: 1, failed: 1 })
    expect(await fixture.rows('item')).toMatchObject([
      { status: 'PENDING', attempts: 2 },
      { status: 'FAILED', attempts: 3 },
    ])
  })

  it('goes on for ever without a column that counts', async () => {
    await put({})
    for (let turn = 0; turn < 5; turn++) {
      expect(await define().run()).toMatchObject({ requeued: 1 })
      await fixture.pool.query(`update ${at('item')} set status = 'PROCESSING'`)
    }
  })

  it('is taken again by rows.claim, whose fence is above that of the worker before', async () => {
    await put({ status: 'PENDING', attempts: 0 })
    const take = () =>
      fixture.dibs.rows.claim<{ fence: string }>(at('item'), {
        ...{ where: { status: 'PENDING' }, set: { status: 'PROCESSING' }, attemptsColumn: 'attempts' },
        ...{ leaseColumn: 'lease_until', leaseMs: 1_000, fenceColumn: 'fence' },
      })
    const monitor = define({
      ...{ leaseColumn: 'lease_until', fenceColumn: 'fence', attemptsColumn: 'attempts', failTo: 'FAILED' },
      ...{ countsAttempts: false, olderThanMs: 1 },
    })
    const fences: number[] = []
    for (let attempt = 1; attempt <= 3; attempt++) {
      const [taken] = await take()
      fences.push(Number(taken?.fence))
      expect(await monitor.run()).toMatchObject({ requeued: 0, failed: 0 })
      await fixture.schema.clock.advance(1_000)
      expect(await monitor.run()).toMatchObject(attempt < 3 ? { requeued: 1 } : { failed: 1 })
      const { rowCount } = await fixture.pool.query(
        `update ${at('item')} set status = 'DONE' where id = 1 and fence = $1`,
        [taken?.fence],
      )
      expect(rowCount).toBe(0)
    }
    expect(fences.toSorted((one, other) => one - other)).toEqual(fences)
    expect(await fixture.rows('item')).toMatchObject([{ status: 'FAILED', attempts: 3 }])
  })
})

describe('fail', () => {
  it.each([
    [{}, 'Processing timeout - worker may have crashed'],
    [{ stuck: 'EXECUTING' }, 'Execution timeout - worker may have crashed'],
    [{ stuck: ['PROCESSING', 'EXECUTING'] }, 'Processing timeout - worker may have crashed'],
    [{ reason: "it's \\ gone" }, "it's \\ gone"],
  ])('says why: %j', async (options, error) => {
    await put({ status: 'stuck' in options && options.stuck === 'EXECUTING' ? 'EXECUTING' : 'PROCESSING' })
    expect(await define({ ...failing, errorColumn: 'error', ...options }).run()).toMatchObject({ failed: 1 })
    expect(await fixture.rows('item')).toMatchObject([{ status: 'FAILED', error }])
  })

  it('raises the fence, stamps the row and writes what else is said', async () => {
    await put({ fence: NOW.getTime() * 1_000 + 7, note: 'x' }, { fence: null })
    const options = {
      fenceColumn: 'fence',
      stampColumn: 'failed_at',
      set: { note: 'given up', lease_until: null },
    }
    expect(await define({ ...failing, ...options }).run()).toMatchObject({ failed: 2 })
    const written = { failed_at: NOW, note: 'given up' }
    expect(await fixture.rows('item')).toMatchObject([
      { ...written, fence: `${NOW.getTime() * 1_000 + 8}` },
      { ...written, fence: `${NOW.getTime() * 1_000}` },
    ])
  })
})

describe('a function', () => {
  it('decides about each row, in the transaction that writes its answer', async () => {
    await put(
      { note: 'again' },
      { note: 'no' },
      { note: 'wait' },
      {},
      { note: 'move' },
      { note: 'again', attempts: 9 },
    )
    const seen: unknown[] = []
    const report = await define({
      ...{ failTo: 'FAILED', attemptsColumn: 'attempts', errorColumn: 'error', fenceColumn: 'fence' },
      action: async (row, tx) => {
        seen.push(row.id)
        await tx.query(`update ${at('item')} set day = '2030-01-01' where id = $1`, [row.id])
        if (row.note === 'again') return 'requeue'
        if (row.note === 'no') return 'fail'
        if (row.note === 'wait') return 'leave'
        if (row.note === 'move') return { set: { updated_at: NOW } }
      },
    }).run()
    expect(report).toMatchObject({ requeued: 1, failed: 2, left: 2, handled: 1, errors: 0, isMore: false })
    expect(seen).toEqual([1, 2, 3, 4, 5, 6])
    const rows = await fixture.rows('item')
    expect(rows.every(({ day }) => day !== null)).toBe(true)
    expect(rows).toMatchObject([
      { status: 'PENDING', attempts: 1 },
      { status: 'FAILED', attempts: 1, error: 'Processing timeout - worker may have crashed' },
      { status: 'PROCESSING', attempts: null, fence: null },
      { status: 'PROCESSING', fence: null },
      { status: 'PROCESSING', updated_at: NOW, fence: `${NOW.getTime() * 1_000}` },
      { status: 'FAILED', attempts: 10 },
    ])
  })

  it('that throws is rolled back, told, and keeps no other row waiting', async () => {
    await put({}, {}, {})
    const monitor = define({
      action: async (row, tx) => {
        await tx.query(`update ${at('item')} set note = 'seen' where id = $1`, [row.id])
        if (row.id === 2) throw new Error('broken')
        return 'requeue'
      },
    })
    const events = await heard('dibs:monitor.row-failed', async () =>
      expect(await monitor.run()).toMatchObject({ requeued: 2, errors: 1, isMore: false }),
    )
    expect(events).toMatchObject([
      { id: 2, table: at('item'), monitor: monitor.name, error: { message: 'broken' } },
    ])
    expect(await fixture.rows('item')).toMatchObject([
      { status: 'PENDING', note: 'seen' },
      { status: 'PROCESSING', note: null },
      { status: 'PENDING' },
    ])
  })

  it('that meets a conflict runs once more, and then counts as failed', async () => {
    await put({}, {})
    const runs: unknown[] = []
    const monitor = define({
      action: async (row, tx) => {
        runs.push([row.id, tx.attempt])
        if (row.id === 1 || tx.attempt === 1) await tx.query("do $$ begin raise sqlstate '40001'; end $$")
        return 'requeue'
      },
    })
    expect(await monitor.run()).toMatchObject({ requeued: 1, errors: 1 })
    expect(runs).toEqual([
      [1, 1],
      [1, 2],
      [2, 1],
      [2, 2],
    ])
  })

  it.each([
    ['nonsense', "must answer 'requeue', 'fail', 'leave' or { set }, not \"nonsense\""],
    [{ set: {} }, 'must not be empty'],
    [{ set: { nte: 1 } }, 'Did you mean note?'],
    [{ set: { id: 7 } }, 'it identifies the row'],
    ['fail', '`failTo` must be given'],
    [null, 'not null'],
  ])('that answers %j fails', async (answer, problem) => {
    await put({})
    const events = await heard('dibs:monitor.row-failed', async () =>
      expect(await define({ action: (() => answer) as never }).run()).toMatchObject({ errors: 1 }),
    )
    expect(String(events[0]?.error)).toContain(problem)
    expect(await statuses()).toEqual(['PROCESSING'])
  })

  it('that has removed the row has not requeued it', async () => {
    await put({})
    const action = async (
      row: Record<string, unknown>,
      tx: { query(text: string, values: unknown[]): unknown },
    ) => {
      await tx.query(`delete from ${at('item')} where id = $1`, [row.id])
      return 'requeue' as const
    }
    const events = await heard('dibs:monitor.row-failed', () => define({ action }).run())
    expect(events[0]?.error).toBeInstanceOf(NotWrittenError)
    expect(await statuses()).toEqual(['PROCESSING'])
  })

  it('that loses its connection over one row keeps no other waiting', async () => {
    await put({ ago: 30 }, {}, {})
    const action = async (row: Record<string, unknown>, tx: Transaction) => {
      if (row.id === 1) await tx.query('select pg_terminate_backend(pg_backend_pid())')
      return 'requeue' as const
    }
    const events = await heard('dibs:monitor.row-failed', async () =>
      expect(await define({ action }).run()).toMatchObject({ requeued: 2, errors: 1, isMore: false }),
    )
    expect(events).toMatchObject([{ id: 1, error: { code: 'DIBS_CONNECTION_LOST' } }])
    expect(await statuses()).toEqual(['PROCESSING', 'PENDING', 'PENDING'])
  })

  it('that loses it over each row ends the run after ten of these', async () => {
    await put(...Array.from({ length: 12 }, () => ({})))
    const action = async (_: Record<string, unknown>, tx: Transaction) => {
      await tx.query('select pg_terminate_backend(pg_backend_pid())')
      return undefined
    }
    expect(await define({ action }).run()).toMatchObject({ errors: 10, isMore: true })
  })

  it('that loses it since the server is away ends the run', async () => {
    await put({}, {})
    await using proxy = await PgProxy.start({ url })
    const seen: unknown[] = []
    await beside(proxy.url, async (dibs) => {
      const action = async (row: Record<string, unknown>, tx: Transaction) => {
        seen.push(row.id)
        proxy.inject({ kind: 'refuse' })
        proxy.inject({ kind: 'reset' })
        await tx.query('select')
        return 'requeue' as const
      }
      await expect(dibs.monitor(newName(), optionsOf({ action })).run()).rejects.toThrow(ConnectionLostError)
    })
    expect(seen).toEqual([1])
    expect(await statuses()).toEqual(['PROCESSING', 'PROCESSING'])
  })

  it('whose COMMIT is not answered ends the run: the row may be changed, and is not told as one that could not be', async () => {
    await put({}, {})
    await using cutter = await startAnswerCutter(url)
    const events = await heard('dibs:monitor.row-failed', () =>
      beside(cutter.url, async (dibs) => {
        const action = async (row: Record<string, unknown>, tx: Transaction) => {
          await tx.query(`update ${at('item')} set note = 'seen' where id = $1`, [row.id])
          cutter.cutAfter(0)
          return undefined
        }
        await expect(dibs.monitor(newName(), optionsOf({ action })).run()).rejects.toThrow(
          CommitOutcomeUnknownError,
        )
      }),
    )
    expect(cutter.hasCut).toBe(true)
    expect(events).toEqual([])
    expect(await fixture.rows('item')).toMatchObject([{ note: 'seen' }, { note: null }])
  })

  it('is given no row that another has', async () => {
    await put({}, {})
    const action = async () => 'requeue' as const
    await fixture.withClient(async (other) => {
      await other.query(`select from ${at('item')} where id = 1 for no key update`)
      expect(await define({ action }).run()).toMatchObject({ requeued: 1 })
    })
    expect(await statuses()).toEqual(['PROCESSING', 'PENDING'])
  })
})

describe('one bad row', () => {
  it('that a constraint keeps fails alone, in the middle of a batch', async () => {
    await put({}, {}, { note: 'bad' }, {}, { note: 'bad' })
    await fixture.pool.query(
      `alter table ${at('item')} add constraint no_bad check (note is distinct from 'bad' or status = 'PROCESSING')`,
    )
    for (const batch of [100, 2]) {
      if (batch === 2) await put({ id: 6 })
      const monitor = define({ batch })
      const events = await heard('dibs:monitor.row-failed', async () =>
        expect(await monitor.run()).toMatchObject({
          requeued: batch === 100 ? 3 : 1,
          errors: 2,
          isMore: false,
        }),
      )
      expect(events.map(({ id }) => id)).toEqual([3, 5])
      expect(events[0]?.error).toMatchObject({ constraint: 'no_bad' })
    }
    await fixture.pool.query(`alter table ${at('item')} drop constraint no_bad`)
  })

  it('that a trigger keeps, by an error or without a word', async () => {
    await put({ note: 'raise' }, { note: 'swallow' }, {}, {})
    await fixture.pool.query(
      `create function ${at('keep')}() returns trigger language plpgsql as $$ begin
         if old.note = 'raise' then raise 'not this one'; end if;
         if old.note = 'swallow' then return null; end if;
         return new; end $$;
       create trigger keep before update on ${at('item')} for each row execute function ${at('keep')}()`,
    )
    const events = await heard('dibs:monitor.row-failed', async () =>
      expect(await define({ batch: 1 }).run()).toMatchObject({ requeued: 2, errors: 2 }),
    )
    expect(events).toMatchObject([{ id: 1 }, { id: 2 }])
    expect(String(events[0]?.error)).toContain('not this one')
    expect(events[1]?.error).toBeInstanceOf(NotWrittenError)
    expect(await statuses()).toEqual(['PROCESSING', 'PROCESSING', 'PENDING', 'PENDING'])
    await fixture.pool.query(`drop function ${at('keep')} cascade`)
  })

  it('that somebody is in the way of, in a trigger, fails alone', async () => {
    await put({}, { note: 'slow' }, {})
    await fixture.pool.query(
      `create table ${at('total')} (n int); insert into ${at('total')} values (0);
       create function ${at('add')}() returns trigger language plpgsql as $$ begin
         if old.note = 'slow' then update ${at('total')} set n = n + 1; end if;
         return new; end $$;
       create trigger add before update on ${at('item')} for each row execute function ${at('add')}()`,
    )
    await fixture.withClient(async (other) => {
      await other.query(`update ${at('total')} set n = 7`)
      await fixture.schema.waits.atOnce()
      const events = await heard('dibs:monitor.row-failed', async () =>
        expect(await define().run()).toMatchObject({ requeued: 2, errors: 1, isMore: false }),
      )
      expect(events).toMatchObject([{ id: 2, error: { code: 'DIBS_BUSY' } }])
      // Each takes its wait, so not all of them are tried.
      await put(...Array.from({ length: 12 }, (_, n) => ({ id: n + 4, note: 'slow' })))
      expect(await define().run()).toMatchObject({ requeued: 0, errors: 10, isMore: true })
    })
    await fixture.schema.waits.reset()
    await fixture.pool.query(`drop function ${at('add')} cascade; drop table ${at('total')}`)
  })

  it('what all rows would meet ends the run', async () => {
    await put({}, {})
    const role = freshName('reader')
    const connectionString = await createRole(role)
    await fixture.pool.query(
      `grant usage on schema ${fixture.shop}, ${fixture.schema.name} to ${role}; grant select, update (note) on ${at('item')} to ${role};
       grant execute on all functions in schema ${fixture.schema.name} to ${role}`,
    )
    const pool = new pg.Pool({ connectionString })
    const dibs = await Dibs.open({ ...throughPool, pool, schema: fixture.schema.name, migrate: 'off' })
    const monitor = dibs.monitor(newName(), {
      ...{ table: at('item'), stuck: 'PROCESSING', timeColumn: 'updated_at', olderThanMs: 1 },
      ...{ action: 'requeue', requeueTo: 'PENDING' },
    })
    const events = await heard('dibs:monitor.row-failed', () =>
      expect(monitor.run()).rejects.toMatchObject({ sqlState: '42501' }),
    )
    expect(events).toEqual([])
    await dibs.close()
    await pool.end()
    await fixture.pool.query(`drop owned by ${role}; drop role ${role}`)
  })

  it('rows of one moment that fail for ever do not keep others waiting', async () => {
    await put(...Array.from({ length: 9 }, (_, n) => ({ note: n < 7 ? 'bad' : null })))
    const monitor = define({
      batch: 2,
      action: async (row) => {
        if (row.note === 'bad') throw new Error('bad')
        return 'requeue'
      },
    })
    expect(await monitor.run()).toMatchObject({ errors: 7, requeued: 2, isMore: false })
  })
})

describe('a run', () => {
  it('is bounded: 100 batches, and the rest is for the next', async () => {
    await fixture.schema.clock.freeze(NOW)
    await fixture.pool.query(
      `insert into ${at('item')} (id, status, updated_at) select n, 'PROCESSING', '2029-01-01' from generate_series(1, 103) n`,
    )
    const monitor = define({ batch: 1 })
    expect(await monitor.run()).toMatchObject({ requeued: 100, isMore: true })
    expect(await monitor.run()).toMatchObject({ requeued: 3, isMore: false })
  })

  it('ends by its signal, behind the row that it is at', async () => {
    await put({}, {}, {})
    const controller = new AbortController()
    const monitor = define({
      action: async () => {
        controller.abort()
        return 'requeue'
      },
    })
    expect(await monitor.run({ signal: controller.signal })).toMatchObject({ requeued: 1, isMore: true })
    expect(await define().run({ signal: AbortSignal.abort() })).toMatchObject({
      requeued: 0,
      isMore: true,
      oldestMs: 600_000,
    })
  })

  it('takes one round trip to look and one for each batch', async () => {
    await put({}, {})
    const monitor = define()
    await monitor.run()
    await fixture.pool.query(`update ${at('item')} set status = 'PROCESSING'`)
    expect(await countTraffic(fixture.pool, () => monitor.run())).toMatchObject({ roundTrips: 2 })
  })

  it('tells what it has found and done', async () => {
    await put({ ago: 7 }, { ago: null })
    const monitor = define()
    const run = () => monitor.run()
    const ran = await heard('dibs:monitor.ran', async () => {
      const recovered = await heard('dibs:monitor.recovered', run)
      expect(recovered).toMatchObject([{ monitor: monitor.name, table: at('item'), requeued: 1, failed: 0 }])
      expect(await heard('dibs:monitor.recovered', run)).toEqual([])
    })
    expect(ran).toMatchObject([
      { monitor: monitor.name, requeued: 1, oldestMs: 7 * MINUTES, withoutTime: 1 },
      { requeued: 0, oldestMs: 0 },
    ])
  })
})

describe('tables of every kind', () => {
  it('a key of several columns, an enum and a local time', async () => {
    await fixture.schema.clock.freeze(NOW)
    const tenant = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
    await fixture.pool.query(
      `insert into ${at('typed')} values ('${tenant}', 'b', 'PROCESSING', '2030-01-01 12:54'), ('${tenant}', 'a', 'EXECUTING', '2030-01-01 12:54'),
         ('${tenant}', 'c', 'PROCESSING', '2030-01-01 12:56'), ('${tenant}', 'd', 'DONE', '2030-01-01 12:00'), ('${tenant}', 'e', 'PROCESSING', '2030-01-01 12:53')`,
    )
    const typed = { table: at('typed'), timeColumn: 'at', timeZone: 'Europe/Berlin', batch: 1 }
    const failed: unknown[] = []
    const stop = onEvent('dibs:monitor.row-failed', ({ id }) => failed.push(id))
    const action = async () => {
      throw new Error('no')
    }
    const stuck = ['PROCESSING', 'EXECUTING']
    expect(await define({ ...typed, stuck, action }).run()).toMatchObject({
      errors: 3,
      oldestMs: 7 * MINUTES,
    })
    stop()
    expect(failed).toEqual(['e', 'a', 'b'].map((id) => ({ tenant, id })))
    expect(await define({ ...typed, stuck, stampColumn: 'done_at' }).run()).toMatchObject({ requeued: 3 })
    const { rows } = await fixture.pool.query(
      `select id, done_at::text from ${at('typed')} where status = 'PENDING' order by id`,
    )
    expect(rows).toEqual(['a', 'b', 'e'].map((id) => ({ id, done_at: '2030-01-01 13:00:00' })))
  })

  it('an hour that comes twice makes no row look older than it is', async () => {
    // 02:04 for the second time; the row is of 02:02, a moment ago, and 02:59 was five minutes ago.
    await fixture.schema.clock.freeze(new Date('2030-10-27T01:04:00Z'))
    const tenant = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'
    await fixture.pool.query(
      `insert into ${at('typed')} values ('${tenant}', 'new', 'PROCESSING', '2030-10-27 02:02'), ('${tenant}', 'old', 'PROCESSING', '2030-10-27 01:58')`,
    )
    const typed = { table: at('typed'), timeColumn: 'at', timeZone: 'Europe/Berlin' }
    expect(await define(typed).run()).toMatchObject({ requeued: 1 })
    expect(await fixture.rows('typed')).toMatchObject([{ status: 'PROCESSING' }, { status: 'PENDING' }])
  })

  it('partitions', async () => {
    await fixture.schema.clock.freeze(NOW)
    await fixture.pool.query(
      `insert into ${at('part')} select n, case when n % 2 = 0 then '2030-01-05'::date else '2030-02-05' end, 'PROCESSING', '2030-01-01' from generate_series(1, 9) n`,
    )
    const seen: unknown[] = []
    const action = async ({ id, day }: Record<string, unknown>) => {
      seen.push([String(id), (day as Date).getMonth()])
      return 'leave' as const
    }
    const part = { table: at('part'), timeColumn: 'at', batch: 2 }
    expect(await define({ ...part, action }).run()).toMatchObject({ left: 9 })
    expect(seen).toEqual([2, 4, 6, 8, 1, 3, 5, 7, 9].map((n) => [`${n}`, n % 2]))
    expect(await define(part).run()).toMatchObject({ requeued: 9 })
  })

  it('with a name, and columns, that are called as ours', async () => {
    await fixture.withClient(async (tx) => {
      await tx.query(
        `create table ${at('dibs_l')} (id int primary key, status text, at timestamptz, dibs_0 text, dibs_t text)`,
      )
      await tx.query(
        `insert into ${at('dibs_l')} values (7, 'PROCESSING', '2020-01-01'), (8, 'PROCESSING', '2020-01-01')`,
      )
      await tx.query('commit')
      expect(await define({ table: at('dibs_l'), timeColumn: 'at', batch: 1 }).run()).toMatchObject({
        requeued: 2,
      })
      await tx.query(`drop table ${at('dibs_l')}`)
    })
  })
})
