import { expect, it } from 'vitest'
import { renderStatement, statement } from '../../src/postgres/statement.js'
import { type TextRow, type TextValue, textArray } from '../../src/postgres/text-values.js'
import type { Context } from './harness.js'

const oddStrings = [
  ...[
    '',
    ' ',
    'null',
    'NULL',
    'undefined',
    'true',
    '42',
    '1e3',
    '007',
    '2024-01-01',
    '2024-02-29T12:00:00.000Z',
  ],
  ...[
    "it's",
    '"quoted"',
    'back\\slash',
    '{a,b}',
    '[1]',
    '$1',
    '$$',
    '?',
    ':name',
    '%s',
    '-- no comment',
    '/* */',
  ],
  ...['żółć', '漢字', '🦊👩‍👩‍👧', '\n\r\t', '\u0001', ' '],
]

export function describeValues({ schema, transaction }: Context): void {
  async function ask(
    text: string,
    values: readonly TextValue[],
    setup: string[] = [],
  ): Promise<TextRow | undefined> {
    let row: TextRow | undefined
    await transaction(async (session) => {
      for (const command of setup) await session.query(command)
      row = (await session.send(renderStatement(statement(text), schema), values))[0]
    })
    return row
  }

  it('keeps text as it is', async () => {
    const columns = oddStrings.map((_, index) => `$${index + 1}::text::text as c${index}`)
    const row = await ask(`select ${columns.join(', ')}`, oddStrings)
    expect(Object.values(row ?? {})).toEqual(oddStrings)
  })

  it('tells null, the empty string and the word null apart', async () => {
    const row = await ask(
      'select $1::text::text as a, $2::text::text as b, $3::text::text as c, ($1::text is null)::text as d',
      [null, '', 'null'],
    )
    expect(row).toEqual({ a: null, b: '', c: 'null', d: 'true' })
  })

  it('encodes json once', async () => {
    const value = {
      quotes: `"'\\`,
      kéy: ['🦊', null, true, -0.5, 1e21, ''],
      nested: { null: 'null', n: 12345678901 },
    }
    const row = await ask(
      `select $1::text::jsonb::text as json, jsonb_typeof($1::text::jsonb) as kind, $1::text::jsonb ->> 'quotes' as part,
        ($1::text::jsonb ? 'nested')::text as has`,
      [JSON.stringify(value)],
    )
    expect({ ...row, json: JSON.parse(row?.json ?? '') }).toEqual({
      json: value,
      kind: 'object',
      part: value.quotes,
      has: 'true',
    })
  })

  it('keeps the scalars of json apart from the strings that look like them', async () => {
    const row = await ask(
      `select jsonb_typeof($1::text::jsonb) as a, jsonb_typeof($2::text::jsonb) as b, jsonb_typeof($3::text::jsonb) as c`,
      ['"1"', '1', 'null'],
    )
    expect(row).toEqual({ a: 'string', b: 'number', c: 'null' })
  })

  it('loses no digit of a bigint or a numeric', async () => {
    const row = await ask(
      'select $1::text::bigint::text as same, ($1::text::bigint - 1)::text as less, $2::text::numeric::text as exact',
      ['9223372036854775807', '0.1000000000000000055511151231257827'],
    )
    expect(row).toEqual({
      same: '9223372036854775807',
      less: '9223372036854775806',
      exact: '0.1000000000000000055511151231257827',
    })
  })

  it('loses no microsecond in an odd TimeZone and DateStyle', async () => {
    const row = await ask(
      `select (extract(epoch from $1::text::timestamptz) * 1000000)::bigint::text as micros,
        (extract(epoch from to_timestamp($2::text::numeric / 1000000)) * 1000000)::bigint::text as millis`,
      ['2024-02-29T23:59:59.123456Z', '1709251199123000'],
      ["set local timezone = 'Asia/Kathmandu'", "set local datestyle = 'SQL, DMY'"],
    )
    expect(row).toEqual({ micros: '1709251199123456', millis: '1709251199123000' })
  })

  it('keeps arrays of text', async () => {
    const items = [...oddStrings, null, 'a,b', '"', '\\', '\\"', '{}', '{"x"}']
    const row = await ask(
      'select to_jsonb($1::text::text[])::text as items, cardinality($2::text::text[])::text as none',
      [textArray(items), textArray([])],
    )
    expect({ ...row, items: JSON.parse(row?.items ?? '') }).toEqual({ items, none: '0' })
  })

  it('keeps booleans', async () => {
    const row = await ask('select $1::text::boolean::text as yes, $2::text::boolean::text as no', [
      'true',
      'f',
    ])
    expect(row).toEqual({ yes: 'true', no: 'false' })
  })

  it('takes a parameter twice and out of order, and leaves its look-alike in a literal', async () => {
    const row = await ask(
      `select $2::text::text as b, $1::text::text as a, $2::text || $2::text as bb, '$1'::text as literal, 'a?'::text as mark`,
      ['one', 'two'],
    )
    expect(row).toEqual({ b: 'two', a: 'one', bb: 'twotwo', literal: '$1', mark: 'a?' })
  })

  it('keeps the names of columns', async () => {
    const row = await ask(
      `select 'a'::text as run_at, 'b'::text as "Quoted Name", 'c'::text as _x_1, 'd'::text as FOLDED, 'e'::text as "someName"`,
      [],
    )
    expect(row).toEqual({ run_at: 'a', 'Quoted Name': 'b', _x_1: 'c', folded: 'd', someName: 'e' })
  })
}
