import { describe, expect, it } from 'vitest'
import { migrations } from './generated/migrations.js'
import { readMigrations } from './read-migrations.js'

const head = '-- compatible_from: 1\n'

describe('readMigrations', () => {
  it('reads number, name, header and checksum', () => {
    const [first, second] = readMigrations([
      { file: '0001_a.sql', text: `${head}select 1;\n` },
      { file: '0002_b_c.sql', text: '-- compatible_from: 2\n-- transaction: none\nvacuum;\n' },
    ])
    expect(first).toMatchObject({ version: 1, name: 'a', compatibleFrom: 1, transactional: true })
    expect(second).toMatchObject({ version: 2, name: 'b_c', compatibleFrom: 2, transactional: false })
    expect(first?.checksum).toMatch(/^[0-9a-f]{64}$/)
  })

  it.each([
    ['a name of another form', [{ file: '1.sql', text: head }], 'must be named like'],
    ['a gap', [{ file: '0002_a.sql', text: head }], 'has number 2, but 1 comes next'],
    [
      'two of one number',
      ['0001_a.sql', '0001_b.sql'].map((file) => ({ file, text: head })),
      'has number 1, but 2',
    ],
    ['no compatible_from', [{ file: '0001_a.sql', text: 'select 1' }], 'must say "-- compatible_from: N"'],
    [
      'compatible_from of the future',
      [{ file: '0001_a.sql', text: '-- compatible_from: 2\n' }],
      'N from 1 to 1',
    ],
    [
      'two statements outside a transaction',
      [{ file: '0001_a.sql', text: `${head}-- transaction: none\nselect 1; select 2;` }],
      'must be one statement',
    ],
    [
      'an index that cannot be built twice',
      [
        {
          file: '0001_a.sql',
          text: `${head}-- transaction: none\ncreate unique index concurrently i on {schema}.t (a);`,
        },
      ],
      'IF NOT EXISTS',
    ],
    [
      'an index that only a comment says may be built twice',
      [
        {
          file: '0001_a.sql',
          text: `${head}-- transaction: none\ncreate index concurrently i on {schema}.t (a); -- if not exists`,
        },
      ],
      'IF NOT EXISTS',
    ],
    [
      'a drop that cannot run twice',
      [{ file: '0001_a.sql', text: `${head}-- transaction: none\ndrop index concurrently {schema}.i;` }],
      'IF EXISTS',
    ],
    [
      'CONCURRENTLY in a transaction',
      [{ file: '0001_a.sql', text: `${head}create index concurrently i on {schema}.t (a);` }],
      'transaction: none',
    ],
    [
      'an index name that is too long',
      [
        {
          file: '0001_a.sql',
          text: `${head}-- transaction: none\ncreate index concurrently if not exists ${'i'.repeat(64)} on {schema}.t (a);`,
        },
      ],
      'would cut to 63',
    ],
    ['an abort', [{ file: '0001_a.sql', text: `${head}select 1;\nabort;` }], 'must not begin or end'],
    ['a commit', [{ file: '0001_a.sql', text: `${head}select 1;\ncommit;` }], 'must not begin or end'],
    [
      'a header that is misspelled',
      [{ file: '0001_a.sql', text: `${head}-- transactional: none\nvacuum;` }],
      'is not understood',
    ],
    [
      'a header that comes late',
      [{ file: '0001_a.sql', text: `${head}\n-- transaction: none\nvacuum;` }],
      'is not understood',
    ],
  ])('refuses %s', (_, sources, message) => {
    expect(() => readMigrations(sources)).toThrow(message)
  })
})

it('our own files are numbered from 1', () => {
  expect(migrations.map(({ version }) => version)).toEqual(migrations.map((_, index) => index + 1))
  expect(migrations.length).toBeGreaterThan(0)
})
