import type { Pool } from 'pg'
import { expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { type Piece, runPieces } from '../../../../test/programs.js'
import { explore } from '../explore.js'

const { url } = exploredSchema('create table a (id int primary key, n int not null)')

const read = (id: number) => `select n from a where id = ${id}`
const write = (id: number) => `update a set n = n + 1 where id = ${id}`

/** `misses 3 0 row 1 of a`: the read of step 0 came before the commit of step 3. */
async function linksOf(x: readonly Piece[], y: readonly Piece[], order: string): Promise<string[]> {
  const { race } = await explore({
    url,
    setup: (db) => db.query('insert into a values (1, 0), (2, 0)'),
    actors: { x: (db: Pool) => runPieces(db, x), y: (db: Pool) => runPieces(db, y) },
    schedule: [...order],
    invariant: () => false,
    throws: false,
  })
  expect(race?.schedule.join('')).toBe(order)
  const links = race?.links.filter(({ kind }) => kind === 'reads' || kind === 'misses') ?? []
  return links.map(({ kind, from, to, what }) => `${kind} ${from} ${to} ${what}`)
}

it.each<[string, readonly Piece[], readonly Piece[], string, string[]]>([
  ['a lost update: missed', [read(1), write(1)], [write(1)], 'xyyxx', ['misses 2 0 row 1 of a']],
  ['by one of two', [read(1), write(1)], [read(1), write(1)], 'xyyyxx', ['misses 3 0 row 1 of a']],
  ['one after the other: seen', [write(1)], [read(1)], 'xxy', ['reads 1 2 row 1 of a']],
  ['over and done with: nothing', [read(1), write(2)], [write(1)], 'xxxyy', []],
  ['a read that nothing came of: nothing', [read(1)], [write(1)], 'xyy', []],
  ['another row: nothing', [read(2), write(2)], [write(1)], 'xyyxx', []],
  ['of several that are seen, the last', [write(1), write(1)], [read(1)], 'xxxxy', ['reads 3 4 row 1 of a']],
  [
    'of several that are missed, the first',
    [read(1), write(2)],
    [write(1), write(1)],
    'xyyyyxx',
    ['misses 2 0 row 1 of a'],
  ],
  [
    'a read skew: half missed, half seen',
    [read(1), read(2)],
    [[write(1), write(2)]],
    'xyyyx',
    ['misses 3 0 row 1 of a', 'reads 3 4 row 2 of a'],
  ],
  [
    'a write skew: both missed',
    [[read(1), write(2)]],
    [[read(2), write(1)]],
    'xyyyxx',
    ['misses 3 0 row 1 of a', 'misses 5 1 row 2 of a'],
  ],
  [
    'two rows of one commit: the table',
    [[write(1), write(2)]],
    ['select id, n from a order by id'],
    'xxxy',
    ['reads 2 3 a'],
  ],
  [
    'a row that the reader has changed since: the other',
    [[write(1), write(2)]],
    [[write(2), 'select id, n from a order by id']],
    'xxxyyy',
    ['reads 2 4 row 1 of a'],
  ],
])('%s', async (_name, x, y, order, links) => {
  expect((await linksOf(x, y, order)).toSorted()).toEqual(links.toSorted())
})

it('the link of a wait begins at the step that took the lock', async () => {
  const { race } = await explore({
    url,
    setup: (db) => db.query('insert into a values (1, 0), (2, 0)'),
    actors: {
      x: (db: Pool) => runPieces(db, [[write(2), write(1), write(2), 'select 42']]),
      y: (db: Pool) => runPieces(db, [write(1)]),
    },
    schedule: [...'xxxxyxy'],
    invariant: () => false,
    throws: false,
  })
  const links = race?.links.filter(({ kind }) => kind === 'blocks')
  expect(links).toEqual([{ kind: 'blocks', from: 1, to: 4, what: 'row lock, a' }])
})

it('the turn is the first step of a unit that shares data with the one that was left', async () => {
  const add = async (db: Pool) => {
    const { rows } = await db.query(read(1))
    await db.query('update a set n = $1 where id = 1', [rows[0].n + 1])
  }
  const { race } = await explore({
    url,
    setup: (db) => db.query('insert into a values (1, 0), (2, 0)'),
    actors: { alice: add, mallory: (db) => db.query(write(2)), bob: add },
    invariant: async (db) => (await db.query(read(1))).rows[0].n === 2,
    throws: false,
  })
  expect(race?.turn?.text).toBe('here it goes wrong: bob comes between')
  expect(race?.schedule[race.turn?.step ?? -1]).toBe('bob')
})
