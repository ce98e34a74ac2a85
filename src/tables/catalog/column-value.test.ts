import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { InvalidInputError } from '../../errors.js'
import { findNearest } from '../../options/nearest-name.js'
import { toColumnText } from './column-value.js'

const types = {
  int2: 'smallint',
  int4: 'integer',
  int8: 'bigint',
  num: 'numeric',
  flt: 'double precision',
  bool: 'boolean',
  uid: 'uuid',
  doc: 'jsonb',
  raw: 'json',
  bytes: 'bytea',
  day: 'date',
  at: 'timestamptz',
  local: 'timestamp',
  clock: 'time',
  zoned: 'timetz',
  days: 'date[]',
  birth: '{shop}.birthday',
  code: '{shop}.tiny',
  word: 'text',
  short: 'varchar(3)',
  fixed: 'char(3)',
  mood: '{shop}.mood',
  moods: '{shop}.mood[]',
  ints: 'integer[]',
  docs: 'jsonb[]',
  span: 'interval',
  net: 'inet',
  pos: '{shop}.positive',
  bits: 'bit(4)',
}
const fixture = openTables(
  `create type {shop}.mood as enum ('good', 'it''s "bad"');
   create domain {shop}.whole as bigint;
   create domain {shop}.positive as {shop}.whole check (value > 0);
   create domain {shop}.birthday as date;
   create domain {shop}.little as varchar(2);
   create domain {shop}.tiny as {shop}.little;
   create table {shop}.value (id int primary key, ${Object.entries(types).map(([name, type]) => `"${name}" ${type}`)})`,
  'insert into {shop}.value (id) values (1)',
)

const AT = new Date('2030-12-31T23:59:59.123Z')

describe('a value comes back as it was given', () => {
  it.each([
    ['int2', -32768, '-32768'],
    ['int4', '+7', '7'],
    ['int8', 9223372036854775807n, '9223372036854775807'],
    ['num', '12345678901234567890.123456789', '12345678901234567890.123456789'],
    ['num', 1e-7, '0.0000001'],
    ['num', 12n, '12'],
    ['flt', Number.NaN, 'NaN'],
    ['flt', 0.1, '0.1'],
    ['bool', false, 'false'],
    ['uid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'],
    ['doc', { a: [1, '"\\', null] }, '{"a": [1, "\\"\\\\", null]}'],
    ['doc', 'text', '"text"'],
    ['doc', [1], '[1]'],
    ['doc', '\\u0000', '"\\\\u0000"'],
    ['raw', 5, '5'],
    ['bytes', Buffer.from([0, 255]), '\\x00ff'],
    ['day', '2028-02-29', '2028-02-29'],
    ['at', AT, '2030-12-31 23:59:59.123+00'],
    ['at', '2030-12-31T23:59:59Z', '2030-12-31 23:59:59+00'],
    ['at', '2030-12-31 23:59:59.5+01:30', '2030-12-31 22:29:59.5+00'],
    ['at', 'infinity', 'infinity'],
    ['at', new Date(Date.UTC(12345, 0, 1)), '12345-01-01 00:00:00+00'],
    ['at', new Date('-000001-01-01T00:00:00Z'), '0002-01-01 00:00:00+00 BC'],
    ['local', '2030-12-31 23:59:59.123', '2030-12-31 23:59:59.123'],
    ['clock', '23:59', '23:59:00'],
    ['word', `quotes: '"\\ 🦊`, `quotes: '"\\ 🦊`],
    ['word', '', ''],
    ['short', '🦊🦊🦊', '🦊🦊🦊'],
    ['fixed', 'ab', 'ab'],
    ['mood', `it's "bad"`, `it's "bad"`],
    ['moods', ['good', null, `it's "bad"`], `{good,NULL,"it's \\"bad\\""}`],
    ['ints', [], '{}'],
    [
      'ints',
      [
        [1, 2],
        [3, null],
      ],
      '{{1,2},{3,NULL}}',
    ],
    ['docs', [{ a: 1 }, [2], null], '{"{\\"a\\": 1}",[2],NULL}'],
    ['span', '1 day', '1 day'],
    ['net', '10.0.0.1/24', '10.0.0.1/24'],
    ['pos', 7, '7'],
    ['bits', '1010', '1010'],
    ['word', null, null],
  ])('%s: %s', async (name, value, expected) => {
    await fixture.dibs.transaction(async (tx) => {
      await tx.query("set local timezone = 'UTC'")
      await fixture.dibs.rows.lastWriteWins(fixture.at('value'), 1, { [name]: value }, { tx })
      const { rows } = await tx.query(`select trim("${name}"::text) as text from ${fixture.at('value')}`)
      expect(rows[0]?.text).toBe(expected)
    })
  })
})

describe('a value that the column would not take is refused', () => {
  it.each([
    ['int2', 32768],
    ['int4', 1.5],
    ['int4', '1e3'],
    ['int4', ''],
    ['int4', true],
    ['int8', 2n ** 63n],
    ['int8', 2 ** 53],
    ['num', 'twelve'],
    ['num', Number.NaN],
    ['num', 2 ** 53],
    ['flt', 'x'],
    ['bool', 'true'],
    ['bool', 1],
    ['uid', 'a0eebc99'],
    ['doc', () => 1],
    ['doc', 'nul \0'],
    ['doc', { half: '\ud800' }],
    ['bytes', 'text'],
    ['day', '2030-02-29'],
    ['day', '2030-12-31T00:00:00Z'],
    ['day', '0000-01-01'],
    ['at', new Date(Number.NaN)],
    ['at', '2030-12-31 25:00'],
    ['at', '2030-12-31x10:00'],
    ['at', 'tomorrow'],
    ['at', 5],
    ['word', 'nul \0'],
    ['word', '\ud800'],
    ['word', 5],
    ['short', 'abcd'],
    ['code', 'abc'],
    ['mood', 'bad'],
    ['moods', ['bad']],
    ['moods', 'good'],
    ['ints', ['x']],
    ['net', {}],
    ['pos', 'x'],
    ['word', undefined],
  ])('%s: %s', async (name, value) => {
    const error = await fixture.dibs.rows
      .lastWriteWins(fixture.at('value'), 1, { [name]: value })
      .catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toMatch(new RegExp(`^patch\\.${name}`))
  })

  it.each(['day', 'local', 'clock', 'zoned', 'birth'])(
    '%s: a Date, which is another day elsewhere',
    async (name) => {
      const write = (value: unknown) =>
        fixture.dibs.rows.lastWriteWins(fixture.at('value'), 1, { [name]: value })
      await expect(write(AT)).rejects.toThrow(
        /must not be a Date: give a text such as '.*'\. A Date is a moment, and which day and hour that is depends on the time zone/,
      )
      await expect(write(AT)).rejects.toThrow(InvalidInputError)
    },
  )

  it('a Date among several, or as an id', async () => {
    const write = (id: unknown, days: unknown) =>
      fixture.dibs.rows.lastWriteWins(fixture.at('value'), id as number, { days })
    await expect(write(1, ['2030-12-31', AT])).rejects.toThrow('`patch.days[1]` must not be a Date')
    await fixture.pool.query(`create table ${fixture.at('daily')} (day date primary key, n int)`)
    await expect(fixture.dibs.rows.lastWriteWins(fixture.at('daily'), AT, { n: 1 })).rejects.toThrow(
      "`id` must not be a Date: give a text such as '2026-05-01'",
    )
    await fixture.pool.query(`drop table ${fixture.at('daily')}`)
  })

  it('and a circle is no JSON', () => {
    const circle: { self?: unknown } = {}
    circle.self = circle
    expect(() => toColumnText('patch.doc', { sql: 'jsonb', base: 'jsonb' }, circle)).toThrow(
      InvalidInputError,
    )
  })
})

it.each([
  ['note', 'nte'],
  ['created_at', 'createdAt'],
  ['id', 'idd'],
  ['created_at', 'created'],
  [undefined, 'quantity'],
])('the nearest name is %s for %s', (expected, given) => {
  expect(findNearest(given, ['id', 'note', 'created_at'])).toBe(expected)
})
