import type { Pool } from 'pg'
import { describe, expect, it } from 'vitest'
import { isDeep } from '../../../../test/depth.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { type Piece, runPieces } from '../../../../test/programs.js'
import { cases, optionsOf, tables } from '../../../../test/races.js'
import { explore } from '../explore.js'
import type { ExploreOptions } from '../options.js'

type Story = Omit<ExploreOptions, 'pool' | 'url'>

/** Returns the name of the anomaly in the schedule that the explorer shows, or `-` for none. */
async function nameOf(url: string, story: Story): Promise<string> {
  const { race, summary } = await explore({ url, ...story, throws: false })
  expect(race, summary).toBeDefined()
  const { anomaly, printout } = race ?? {}
  if (anomaly) expect(printout).toContain(`\n  ${anomaly.explanation}\n`)
  return anomaly?.name ?? '-'
}

/** The names of all schedules, taken one by one as if each went wrong; in short, of the first few. */
async function allNames(url: string, story: Story): Promise<readonly string[]> {
  const found: string[] = []
  for (let wrong = 1; isDeep || wrong <= 8; wrong++) {
    let calls = 0
    const invariant = () => ++calls < wrong
    const { race, notes } = await explore({ url, ...story, invariant, throws: false })
    expect(notes.filter((note) => note.startsWith('Run a second time'))).toEqual([])
    if (!race) return found
    if (race.anomaly) found.push(race.printout)
  }
  return found
}

describe('races in typical code', () => {
  const { url } = exploredSchema(tables)
  const expected: Readonly<Record<string, string>> = {
    'lost update, autocommit': 'lost update',
    'lost update in a transaction': 'lost update',
    'insert … select … where not exists': 'duplicate claim',
    'check, then insert, without a unique index': 'duplicate claim',
    'write skew at READ COMMITTED': 'write skew',
    'write skew at REPEATABLE READ': 'write skew',
    'last item in stock': 'lost update',
    'claim by select, then update': 'duplicate claim',
    'advisory lock released before COMMIT': 'dirty lock release',
    'FOR UPDATE in autocommit': 'lost update',
    'read skew in a report of two selects': 'read skew',
    'deadlock by opposite order': 'deadlock',
  }

  it.each(cases.filter(({ isWrong }) => isWrong))('$name', async (one) => {
    expect(await nameOf(url, optionsOf(one, 2))).toBe(expected[one.name])
  })

  const right = cases.filter(({ isWrong }) => !isWrong)
  it.each(isDeep ? right : right.slice(0, 3))('none in any schedule of: $name', async (one) => {
    expect(await allNames(url, optionsOf(one, 2))).toEqual([])
  })
})

describe('an anomaly that is almost there gets no name', () => {
  const { url, schema } = exploredSchema(`
    create table a (id int primary key, n int not null, m int not null);
    create table booking (room int not null, slot int not null, by text not null);
    create table kind (name text primary key, most int not null);
    create table lock (name text primary key, by text not null);
    create table seen (n int);
    create table logged (id int primary key, n int not null);
    create function note() returns trigger language plpgsql as $$ begin return new; end $$;
    create trigger note before update on logged for each row execute function note();
  `)
  const setup = `
    insert into a values (1, 0, 0), (2, 0, 0), (3, 0, 0); insert into kind values ('x', 1); insert into logged values (1, 0)`

  /** The programs of two actors and the order of their steps. The schedule is fine; the invariant always fails. */
  interface Plot {
    readonly x: readonly Piece[]
    readonly y: readonly Piece[]
    readonly order: string
    readonly isolation?: Story['isolation']
  }

  const explanationOf = async ({ x, y, order, isolation }: Plot): Promise<string> => {
    const report = await explore({
      url,
      setup: (db) => db.query(setup),
      actors: { x: (db: Pool) => runPieces(db, x), y: (db: Pool) => runPieces(db, y) },
      schedule: [...order],
      isolation,
      invariant: () => false,
      throws: false,
    })
    expect(report.race?.schedule.join('').startsWith(order), report.race?.printout).toBe(true)
    return report.race?.anomaly?.explanation ?? '-'
  }

  const read = 'select n from a where id = 1'
  const write = 'update a set n = 5 where id = 1'
  const count = 'select count(*) from booking where room = 1'

  it.each<[string, Plot]>([
    ['a read and a write that nobody came between', { x: [read, write], y: [write], order: 'xxxyy' }],
    ['a commit before the read', { x: [read, write], y: [write], order: 'yyxxx' }],
    ['an increment that nothing was read for', { x: ['update a set n = n + 1'], y: [write], order: 'xyx' }],
    ['another row', { x: [read, write], y: ['update a set n = 5 where id = 2'], order: 'xyyxx' }],
    ['another column', { x: [read, write], y: ['update a set m = 5 where id = 1'], order: 'xyyxx' }],
    ['another table', { x: [read, write], y: [`update kind set most = 2`], order: 'xyyxx' }],
    ['a write of no row', { x: [read, write], y: ['update a set n = 5 where id = 9'], order: 'xyyxx' }],
    ['a write that was rolled back', { x: [read, write], y: [[write, 'select 1 / 0']], order: 'xyyxx' }],
    ['a read that is repeated in time', { x: [read, read, write], y: [write], order: 'xyyxxx' }],
    [
      'a write that asks for what was read',
      { x: [read, 'update a set n = 6 where id = 1 and n = 5'], y: [write], order: 'xyyxx' },
    ],
    ['a read under a lock', { x: [[`${read} for update`, write]], y: [write], order: 'xyxx' }],
    [
      'a trigger',
      {
        x: ['select n from logged where id = 1', 'update logged set n = 1 where id = 1'],
        y: ['update logged set n = 2 where id = 1'],
        order: 'xyyxx',
      },
    ],
    [
      'a read row, and another of those that were written',
      {
        x: [read, 'update a set n = 1 where id = 2'],
        y: ['update a set n = 5 where id in (1, 2)'],
        order: 'xyyxx',
      },
    ],
    ['a read that was rolled back', { x: [[read, 'select 1 / 0'], write], y: [write], order: 'xyyxxx' }],
    [
      'a row that was skipped',
      {
        x: [['select n from a where n = 0 for update skip locked', 'update a set n = 1 where id = 2']],
        y: [['select n from a where id = 2', write]],
        order: 'yyxyxx',
      },
    ],
    [
      'a savepoint that was gone back to',
      { x: [read, ['savepoint s', write, 'rollback to s', write]], y: [write], order: 'xyyxxxx' },
    ],
    [
      'a table that is named in two ways',
      {
        x: [read, write],
        y: [`update "a" set n = 5 where id = 1`, `update ${schema}.a set n = 5`],
        order: 'xyyyyxx',
      },
    ],
    [
      'an advisory lock that was taken after the change',
      {
        x: [[write, 'select pg_advisory_lock(7)', 'select pg_advisory_unlock(7)']],
        y: [
          'select pg_advisory_lock(7)',
          'select n from a where id = 1',
          'select pg_advisory_unlock(7)',
          `insert into seen values (1)`,
        ],
        order: 'xxxyyyxyy',
      },
    ],
    [
      'a lock that somebody may have changed in between',
      {
        x: [`insert into lock values ('l', 'x') on conflict do nothing`, `delete from lock where name = 'l'`],
        y: [
          `delete from lock where name = 'l'`,
          `with gone as (delete from lock returning 1) insert into lock select 'l', 'y' from gone`,
          `insert into lock values ('l', 'y') on conflict do nothing`,
        ],
        order: 'xxyyyyyyxx',
      },
    ],
    [
      'one side of a write skew, and another column',
      {
        x: [[read, 'update a set n = 1 where id = 2']],
        y: [['select n from a where id = 2', 'update a set m = 1 where id = 1']],
        order: 'xyyyxx',
      },
    ],
    [
      'one side of a write skew, and a row that is not there',
      {
        x: [['select n from a where id = 9', 'update a set n = 1 where id = 2']],
        y: [['select n from a where id = 2', 'update a set n = 5 where id in (3, 9)']],
        order: 'xyyyxx',
      },
    ],
    [
      'two who write the same row, of whom the second asks for what it has read',
      {
        x: [[read, 'update a set n = 6 where id = 1 and n = 5']],
        y: [[read, write]],
        order: 'xyyyxx',
      },
    ],
    [
      'two claims of which the second asks whether it is free',
      {
        x: ['select id from a where m = 0 and id = 1', 'update a set m = 1 where id = 1 and m = 0'],
        y: ['select id from a where m = 0 and id = 1', 'update a set m = 0 where id = 1'],
        order: 'xyyyxx',
      },
    ],
    [
      'a second read that sees the whole',
      {
        x: [[read, 'select n from a']],
        y: [[write, 'update a set n = 5 where id = 2']],
        order: 'xyyyxx',
      },
    ],
    [
      'two reads that belong to different deeds',
      {
        x: [read, 'insert into seen values (1)', 'select n from a where id = 2'],
        y: [[write, 'update a set n = 5 where id = 2']],
        order: 'xyyyxxx',
      },
    ],
    [
      'an advisory lock that is given back too soon, to one who only looks',
      {
        x: [['select pg_advisory_lock(7)', write, 'select pg_advisory_unlock(7)']],
        y: [['select pg_advisory_lock(7)', read, 'select pg_advisory_unlock(7)']],
        order: 'xxxyyxyy',
      },
    ],
    [
      'a row that was skipped by its key',
      {
        x: [['select n from a where id = 1 for update skip locked', 'update a set n = 1 where id = 2']],
        y: [['select n from a where id = 2', write]],
        order: 'yyxyxx',
      },
    ],
    [
      'two that read and write what is their own',
      {
        x: [[read, 'update a set m = 1 where id = 1']],
        y: [['select n from a where id = 2', 'update a set m = 1 where id = 2']],
        order: 'xyyyxx',
      },
    ],
    [
      'one side of a write skew',
      {
        x: [[read, 'update a set n = 1 where id = 2']],
        y: [['select n from a where id = 3', write]],
        order: 'xyyyxx',
      },
    ],
    [
      'a condition that the row may not fulfil',
      {
        x: [['select count(n) from a where m = 1', 'update a set n = 1 where id = 1']],
        y: [['select count(n) from a where m = 1', 'update a set n = 1 where id = 2']],
        order: 'xyyyxx',
      },
    ],
    [
      'rows inserted that nobody had asked for',
      {
        x: [['select count(*) from booking where room = 1', `insert into booking values (2, 1, 'x')`]],
        y: [['select count(*) from booking where room = 1', `insert into booking values (2, 1, 'y')`]],
        order: 'xyyyxx',
      },
    ],
    [
      'two reads of which one transaction changed one',
      {
        x: [[read, 'select n from a where id = 2']],
        y: [['update a set n = 5 where id = 1', 'update a set n = 5 where id = 3']],
        order: 'xyyyxx',
      },
    ],
    [
      'two reads, and two transactions',
      {
        x: [[read, 'select n from a where id = 2']],
        y: [write, 'update a set n = 5 where id = 2'],
        order: 'xyyyyxx',
      },
    ],
    [
      'two reads of one context',
      {
        x: [[read, 'select n from a where id = 2']],
        y: [[write, 'update a set n = 5 where id = 2']],
        order: 'xyyyxx',
        isolation: 'repeatable read',
      },
    ],
    [
      'a lock that its own holder releases',
      {
        x: [`insert into lock values ('l', 'x') on conflict do nothing`, `delete from lock where name = 'l'`],
        y: [`insert into lock values ('l', 'y') on conflict do nothing`],
        order: 'xxyyxx',
      },
    ],
    [
      'a row that somebody deletes who never wanted it',
      {
        x: [read, `delete from lock where name = 'l'`],
        y: [`insert into lock values ('l', 'y')`],
        order: 'xyyxx',
      },
    ],
    [
      'an advisory lock that is given back after the commit',
      {
        x: ['select pg_advisory_lock(7)', read, write, 'select pg_advisory_unlock(7)'],
        y: ['select pg_advisory_lock(7)', read, write, 'select pg_advisory_unlock(7)'],
        order: 'xyxxxx',
      },
    ],
  ])('silent: %s', async (_name, plot) => {
    expect(await explanationOf(plot)).toBe('-')
  })

  it.each<[string, Plot, string]>([
    [
      'lost update, of a statement that had to wait',
      { x: [read, write], y: [write], order: 'xyxyx' },
      `Lost update on row 1 of a: x read n (x 1) and set it (x 2), over a change that y committed in between (y 2).`,
    ],
    [
      'duplicate claim, asked for with EXISTS',
      {
        x: [['select exists (select from booking where room = 1)', `insert into booking values (1, 1, 'x')`]],
        y: [['select exists (select from booking where room = 1)', `insert into booking values (1, 1, 'y')`]],
        order: 'xyyyxx',
      },
      `Duplicate claim on booking: neither y 1 nor x 1 could see the other's row, and both inserted one (y 2 and x 2).`,
    ],
    [
      'lost update, which makes something else of what it finds',
      {
        x: ['select id from a where id = 1 and n = 0', 'update a set n = 1 where id = 1'],
        y: ['select id from a where id = 1 and n = 0', 'update a set n = 2 where id = 1'],
        order: 'xyyyxx',
      },
      'Lost update on row 1 of a: x read n (x 1) and set it (x 2), over a change that y committed in between (y 3).',
    ],
    [
      'phantom, for who lists and adds to the list',
      {
        x: [['select room, slot, by from booking where room = 1', `insert into booking values (1, 1, 'x')`]],
        y: [['select room, slot, by from booking where room = 1', `insert into booking values (1, 1, 'y')`]],
        order: 'xyyyxx',
      },
      `Phantom in booking: x read booking (x 1) before the commit of y's new row (y 2), and y read booking (y 1) before the commit of x's new row (x 2); both committed.`,
    ],
    [
      'phantom, for who is not stopped by what it finds',
      {
        x: [[count, `insert into booking values (1, 1, 'x')`]],
        y: [
          [count, `insert into booking values (1, 1, 'x')`, count, `insert into booking values (1, 1, 'x')`],
        ],
        order: 'xyyyyyxx',
      },
      `Phantom in booking: x read booking (x 1) before the commit of y's new row (y 2), and y read booking (y 1) before the commit of x's new row (x 2); both committed.`,
    ],
    [
      'lost update, whose write adds to what it finds',
      { x: [read, 'update a set n = n - 1 where id = 1'], y: [write], order: 'xyyxx' },
      `Lost update on row 1 of a: x read n (x 1) and changed it (x 2), but y changed it too and committed in between (y 2).`,
    ],
    [
      'write skew by key',
      {
        x: [[read, 'update a set n = 1 where id = 2']],
        y: [['select n from a where id = 2', write]],
        order: 'xyyyxx',
      },
      `Write skew on a: x read row 1 of a (x 1) before the commit of y's change (y 2), and y read row 2 of a (y 1) before the commit of x's change (x 2); both committed.`,
    ],
    [
      'phantom: a limit that is counted, and one who lowers it',
      {
        x: [[`select most from kind where name = 'x'`, `insert into booking values (1, 1, 'x')`]],
        y: [
          [
            'select count(*) from booking where room = 1 and slot < 5',
            `update kind set most = 0 where name = 'x'`,
          ],
        ],
        order: 'xyyyxx',
      },
      `Phantom in booking: x read row 'x' of kind (x 1) before the commit of y's change (y 2), and y read booking (y 1) before the commit of x's new row (x 2); both committed.`,
    ],
    [
      'phantom: counted twice',
      {
        x: [['select count(*) from booking where room = 1', 'select count(*) from booking where room = 1']],
        y: [`insert into booking values (1, 1, 'y')`],
        order: 'xyyxx',
      },
      `Phantom in booking: x ran the same query twice in one transaction (x 1 and x 2), and a row of y's was committed in between (y 2).`,
    ],
    [
      'read skew',
      {
        x: [[read, 'select n from a where id = 2']],
        y: [[write, 'update a set n = 5 where id = 2']],
        order: 'xyyyxx',
      },
      `Read skew on a: y changed row 1 of a and row 2 of a in one transaction (committed in y 3); x read the one before it (x 1) and the other after it (x 2).`,
    ],
    [
      'dirty lock release',
      {
        x: [['select pg_advisory_lock(7)', read, write, 'select pg_advisory_unlock(7)']],
        y: [['select pg_advisory_lock(7)', read, write, 'select pg_advisory_unlock(7)']],
        order: 'xxxxyyxyyy',
      },
      `Dirty lock release: x gave the advisory lock back (x 4) before the change of row 1 of a under it was committed (x 5); y got the lock (y 1) and read what was there before (y 2).`,
    ],
    [
      'deadlock, though it was handled',
      {
        x: [[write, 'update a set n = 5 where id = 2']],
        y: [['update a set n = 5 where id = 2', write]],
        order: 'xyxy',
      },
      `Deadlock: x 2 waited for y (row lock, a), y 2 closed the circle, and the server ended y 2 with 40P01.`,
    ],
  ])('%s', async (_name, plot, sentence) => {
    expect(await explanationOf(plot)).toBe(sentence)
  })
})
