import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { databaseOf } from '../../postgres/database-of.js'
import { Catalog } from '../catalog/catalog.js'
import { type MonitorOptions, readRule } from './monitor-options.js'
import { pickCall, sweepCall } from './monitor-statements.js'

const fixture = openTables(
  `create type {shop}.state as enum ('PENDING', 'PROCESSING', 'EXECUTING');
   create operator class {shop}.backward for type timestamptz using btree as
     operator 1 >, operator 2 >=, operator 3 =, operator 4 <=, operator 5 <, function 1 timestamptz_cmp(timestamptz, timestamptz);
   create domain {shop}.label as varchar(20);
   create table {shop}.item (
     id int primary key, status text, plain text collate "C", short varchar(20), mood {shop}.state, label {shop}.label, level smallint, rank int check (rank > 0), at timestamptz, local timestamp, gone_at timestamptz
   );
   create table {shop}.part (id int, day date, status text, at timestamptz, primary key (day, id)) partition by range (day);
   create table {shop}.part_1 partition of {shop}.part for values from ('2030-01-01') to ('2030-02-01');
   create table {shop}.part_2 partition of {shop}.part for values from ('2030-02-01') to ('2030-03-01')`,
)
const { at } = fixture
let count = 0
const optionsOf = (options: object): MonitorOptions =>
  ({
    ...{ table: at('item'), stuck: 'PROCESSING', timeColumn: 'at', olderThanMs: 1_000 },
    ...{ action: 'requeue', requeueTo: 'PENDING', ...options },
  }) as MonitorOptions
const check = (options: object = {}) => fixture.dibs.monitor(`m${++count}`, optionsOf(options)).checkIndexes()

/** With indexes that are gone afterwards. */
async function withIndexes(sql: string, work: () => Promise<unknown>): Promise<void> {
  await fixture.pool.query(sql.replaceAll('{item}', at('item')).replaceAll('{part}', at('part')))
  try {
    await work()
  } finally {
    const { rows } = await fixture.pool.query(
      `select format('%I.%I', schemaname, indexname) as name from pg_indexes where schemaname = $1 and indexname like 'i\\_%'`,
      [fixture.shop],
    )
    for (const { name } of rows) await fixture.pool.query(`drop index if exists ${name} cascade`)
  }
}

describe('an index serves', () => {
  it.each([
    ['the time, of rows in the state', "(at) where status = 'PROCESSING'", {}],
    ['the state and the time', '(status, at)', {}],
    ['the state and the time and more', '(status, at desc, id) include (gone_at)', {}],
    [
      'the state and the time, of rows in several',
      "(status, at) where status in ('PROCESSING', 'EXECUTING')",
      {},
    ],
    ['the time, of rows in one of more states', "(at) where status in ('PROCESSING', 'EXECUTING')", {}],
    [
      'the time, of rows in all of several states',
      "(at) where status in ('PROCESSING', 'EXECUTING')",
      { stuck: ['EXECUTING', 'PROCESSING'] },
    ],
    ['the time, of rows that are not done', "(at) where status <> 'DONE'", {}],
    ['the time, of rows that are not in a state before it', "(at) where status >= 'A'", {}],
    [
      'the time, of rows that are in a state and not done',
      "(at) where status is not null and status <> 'DONE'",
      {},
    ],
    [
      'the state and the time, of rows that have both',
      '(status, at) where status is not null and at is not null',
      {},
    ],
    ['the time, of rows that have one', "(at) where status = 'PROCESSING' and at is not null", {}],
    ['the state by its bytes, which is the same where it is equal', '(status text_pattern_ops, at)', {}],
    ['of a varchar', "(at) where short = 'PROCESSING'", { statusColumn: 'short' }],
    ['of an enum', "(at) where mood = 'PROCESSING'", { statusColumn: 'mood' }],
    [
      'of several of an enum',
      "(at) where mood in ('PROCESSING', 'EXECUTING')",
      { statusColumn: 'mood', stuck: ['PROCESSING', 'EXECUTING'] },
    ],
    ['of a domain', "(at) where label = 'PROCESSING'", { statusColumn: 'label' }],
    ['in the collation of its column', "(at) where plain = 'PROCESSING'", { statusColumn: 'plain' }],
    ['of states in the collation of their column', '(plain, at)', { statusColumn: 'plain' }],
    ['of numbers', '(at) where level = 3', { statusColumn: 'level', stuck: 3, requeueTo: 1 }],
    [
      'with a local time',
      "(local) where status = 'PROCESSING'",
      { timeColumn: 'local', timeZone: 'Europe/Berlin' },
    ],
  ])('%s', (_, index, options) =>
    withIndexes(`create index i_one on {item} ${index}`, async () => {
      expect(await check(options)).toEqual({ ok: true, index: 'i_one' })
    }),
  )
})

describe('an index does not serve', () => {
  const missing = {
    sql: `create index concurrently "item_processing_at" on "{shop}"."item" ("at", "id") where "status" = 'PROCESSING'`,
  }
  it.each([
    ['the time of all rows', '(at)'],
    ['the time of all rows that are in a state', '(at) where status is not null'],
    ['the time of all rows that have one', '(at) where at is not null'],
    ['the time of all rows that have both', '(at) where at is not null and status is not null'],
    ['the time of all rows, in other words', '(at) where true'],
    ['of other states', "(at) where status = 'PENDING'"],
    ['of some of these rows', "(at) where status = 'PROCESSING' and gone_at is null"],
    ['the state alone', '(status)'],
    ['the time behind something else', '(status, id, at)'],
    ['an expression', "((at at time zone 'UTC')) where status = 'PROCESSING'"],
    ['of another kind', "using brin (at) where status = 'PROCESSING'"],
    ['of states in another collation', '(status collate "C", at)'],
    ['of rows in a state by another collation', `(at) where status collate "C" = 'PROCESSING'`],
    ['in another order', `(status, at {shop}.backward)`],
    ['in another order, of rows in the state', `(at {shop}.backward) where status = 'PROCESSING'`],
    ['of rows that are all of them, which the planner does not look up', '(at) where rank > 0'],
    ['of rows that the planner cannot tell', "(at) where lower(status) = 'processing'"],
  ])('%s', (_, index) =>
    withIndexes(`create index i_one on {item} ${index.replace('{shop}', fixture.shop)}`, async () => {
      const sql = missing.sql.replace('{shop}', fixture.shop)
      expect(await check()).toMatchObject({
        ok: false,
        missing: { sql, why: expect.stringContaining('no index leads') },
      })
    }),
  )

  it('none of all states', () =>
    withIndexes("create index i_one on {item} (at) where status = 'PROCESSING'", async () => {
      const told = await check({ stuck: ['PROCESSING', "it's"] })
      expect(told).toMatchObject({
        ok: false,
        missing: { sql: expect.stringContaining(`where "status" in ('PROCESSING', 'it''s')`) },
      })
    }))

  it('one that is not valid, which is to be made again', () =>
    withIndexes("create index i_one on {item} (at) where status = 'PROCESSING'", async () => {
      await fixture.pool.query(
        `update pg_index set indisvalid = false where indexrelid = '${at('i_one')}'::regclass`,
      )
      expect(await check()).toMatchObject({
        ok: false,
        missing: {
          sql: `reindex index concurrently "${fixture.shop}"."i_one"`,
          why: expect.stringContaining('not valid'),
        },
      })
    }))

  it('and the SQL that is told makes one that does, under a name of its own for each', () =>
    withIndexes('select', async () => {
      const names = new Set<string>()
      for (const options of [{}, { statusColumn: 'mood', stuck: ['PROCESSING', 'EXECUTING'] }]) {
        const told = await check(options)
        if (told.ok) throw new Error('there is none')
        await fixture.pool.query(told.missing.sql)
        const [, name = ''] = /concurrently "(.*?)"/.exec(told.missing.sql) ?? []
        expect(await check(options)).toEqual({ ok: true, index: name })
        names.add(name)
        await fixture.pool.query(`drop index ${at(name)}`)
      }
      expect(names).toEqual(new Set(['item_processing_at', 'item_processing_executing_at']))
    }))
})

describe('of a table in partitions', () => {
  const part = () => ({ table: at('part') })

  it('one of the table', () =>
    withIndexes("create index i_all on {part} (at) where status = 'PROCESSING'", async () => {
      expect(await check(part())).toEqual({ ok: true, index: 'i_all' })
    }))

  it('one of each, and not of some', () =>
    withIndexes(`create index i_1 on ${at('part_1')} (at) where status = 'PROCESSING'`, async () => {
      const told = await check(part())
      expect(told).toMatchObject({
        ok: false,
        missing: {
          sql: expect.stringMatching(/^create index "part_processing_at" on /),
          why: expect.stringContaining('`on only`'),
        },
      })
      await fixture.pool.query(`create index i_2 on ${at('part_2')} (status, at)`)
      expect(await check(part())).toEqual({ ok: true, index: 'i_1, i_2' })
    }))
})

it('of a table in partitions, one of all rows does not serve where the planner would take it', () =>
  withIndexes(
    ['part_1', 'part_2']
      .map((table) => `create index i_${table} on ${at(table)} (at) where status is not null`)
      .join(';'),
    async () => {
      expect(await check({ table: at('part') })).toMatchObject({ ok: false })
    },
  ))

it('one by the state serves beside one of all rows, of the same rows', () =>
  withIndexes(
    'create index i_1 on {item} (at) where status is not null; create index i_2 on {item} (status, at) where status is not null',
    async () => {
      expect(await check()).toEqual({ ok: true, index: 'i_2' })
    },
  ))

/** The plan of the very statement that a run sends. */
async function planOf(options: MonitorOptions, after?: readonly string[]): Promise<string> {
  const database = databaseOf(fixture.dibs)
  const table = await new Catalog(database).read(options.table, undefined)
  const rule = readRule('rule', options as MonitorOptions<never>, fixture.schema.name)
  const call =
    typeof options.action === 'function'
      ? pickCall(table, rule, after)
      : sweepCall(table, rule, options.action, { after })
  const { rows } = await fixture.pool.query<{ 'QUERY PLAN': string }>(
    `explain ${call.statements[0]}`
      .replaceAll(/\$1\b/g, `'${call.args.text.replaceAll("'", "''")}'::text[]`)
      .replaceAll(/\$2\b/g, 'now()'),
  )
  return rows.map((row) => row['QUERY PLAN']).join('\n')
}

/** A plan is much the same on another server, and there need not be as many for it. */
const THOUSANDS = process.env.DIBS_TEST_ON ? 50 : 1_000

describe('of a million rows, of which a thousand are stuck', () => {
  it('those alone are touched, along the index', async () => {
    const big = at('big')
    await fixture.pool.query(
      `create unlogged table ${big} (id int primary key, status varchar(20) not null, at timestamptz not null);
       insert into ${big} select n, case when n % 1000 = 0 then 'PROCESSING' else 'DONE' end, '2020-01-01'::timestamptz + n * interval '1 second'
         from generate_series(1, ${THOUSANDS * 1_000}) n`,
    )
    const options = optionsOf({ table: big })
    const monitor = fixture.dibs.monitor('big', options)
    const told = await monitor.checkIndexes()
    if (told.ok) throw new Error('there is none yet')
    await fixture.pool.query(told.missing.sql)
    await fixture.pool.query(`analyze ${big}`)
    expect(await monitor.checkIndexes()).toEqual({ ok: true, index: 'big_processing_at' })
    const places = [undefined, ['2020-01-01T17:33:20.5+00:00', '77']]
    for (const after of places)
      for (const action of ['requeue', () => 'leave'])
        expect(await planOf({ ...options, action } as MonitorOptions, after)).toMatch(
          /Index Scan using big_processing_at .*\n\s+Index Cond: \(\(?at </,
        )
    expect(await monitor.run()).toMatchObject({ requeued: THOUSANDS, isMore: false })
    const { rows } = await fixture.pool.query(
      `select status, count(*)::int as n, count(*) filter (where xmin::text <> (select xmin::text from ${big} where id = 1))::int as changed from ${big} group by status order by status`,
    )
    expect(rows).toEqual([
      { status: 'DONE', n: THOUSANDS * 999, changed: 0 },
      { status: 'PENDING', n: THOUSANDS, changed: THOUSANDS },
    ])
    await fixture.pool.query(`drop table ${big}`)
  }, 120_000)
})
