import { beforeAll, describe, expect, it } from 'vitest'
import { loadParser, parseStatements } from './parse-statements.js'
import type { StatementKind } from './statement-kind.js'

beforeAll(() => loadParser())

const only = (text: string) => {
  const [statement, ...rest] = parseStatements(text)
  expect(rest).toEqual([])
  if (!statement) throw new Error(`There is no statement in ${text}`)
  return statement
}
const texts = (text: string) => parseStatements(text).map((statement) => statement.text)

const kinds: Record<StatementKind, string[]> = {
  begin: ['begin', 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'start transaction read only', 'begin work'],
  commit: ['commit', 'END', 'commit and chain', "prepare transaction 'x'", 'commit work'],
  rollback: ['rollback', 'ABORT', 'rollback and chain'],
  'rollback-to': ['rollback to savepoint a', 'rollback to a', 'ROLLBACK WORK TO a'],
  savepoint: ['savepoint a', 'release a', 'release savepoint a'],
  setting: [
    'set x.y = 1',
    'set local statement_timeout = 5',
    'reset all',
    'show search_path',
    'set transaction isolation level serializable',
    'set session characteristics as transaction read only',
    'set role r',
  ],
  read: [
    'select 1',
    'table stock',
    'values (1), (2)',
    'with a as (select 1) select * from a',
    'select 1 union select left_over from stock',
    'select * from stock where sku = $1',
    'select f(1)',
    "select 'for update; insert into t'",
    'explain select 1',
    'explain update stock set a = 1',
    'explain (analyze off) update stock set a = 1',
    'explain (analyze 0) update stock set a = 1',
    'explain analyze select 1',
  ],
  whole: [
    'vacuum',
    'vacuum full stock',
    'create database d',
    'drop database d',
    "create tablespace t location '/x'",
    'drop tablespace t',
    'create index concurrently on stock (sku)',
    'create unique index concurrently i on stock (sku)',
    'drop index concurrently i',
    'reindex table concurrently stock',
    'reindex (concurrently) table stock',
    'reindex database d',
    'reindex system d',
    'reindex schema s',
    "alter system set work_mem = '1MB'",
    'discard all',
    'cluster',
    "commit prepared 'x'",
    "rollback prepared 'x'",
    "create subscription s connection 'x' publication p",
    'drop subscription s',
    'alter subscription s refresh publication',
    'alter database d set tablespace t',
    'alter table stock detach partition stock_1 concurrently',
  ],
  work: [
    'insert into stock values (1)',
    'insert into stock values (1) on conflict do nothing',
    'update stock set a = 1',
    'delete from stock',
    'merge into a using b on true when matched then delete',
    'select * from stock for update',
    'select * from stock for no key update skip locked',
    'select * from (select * from stock for share) s',
    'select (select a from stock for key share)',
    'with a as (select * from stock for update) select * from a',
    'with a as (insert into stock values (1) returning *) select * from a',
    'with a as (update stock set a = 1 returning *) table a',
    'select 1 into t',
    'select 1 union select a from stock for update',
    'lock table stock',
    'call app.take(1)',
    'do $$ begin end $$',
    'copy stock from stdin',
    'listen a',
    "notify a, 'b'",
    'create table t (a int)',
    'create table t as select 1',
    'truncate stock',
    'analyze stock',
    'cluster stock',
    'reindex table stock',
    'reindex (concurrently off) table stock',
    'create index on stock (sku)',
    'drop index i',
    'alter database d set work_mem = 1',
    'alter table stock detach partition stock_1',
    'set constraints all immediate',
    'explain analyze update stock set a = 1',
    'explain (analyze) select * from stock for update',
    'execute p',
    'declare c cursor for select 1',
    'refresh materialized view concurrently m',
  ],
}

describe.each(Object.entries(kinds))('of kind %s', (kind, examples) => {
  it.each(examples)('%s', (text) => {
    const statement = only(text)
    expect(statement).toMatchObject({ kind, text, isParsed: true })
  })
})

describe('the text of each statement', () => {
  it.each<[string, string, string[]]>([
    ['nothing', '', []],
    ['blanks', ' \n\t', []],
    ['semicolons', ' ;; ; ', []],
    ['comments alone', '-- a\n /* b /* c */ */ ;', []],
    ['several', 'begin; select 1;commit;', ['begin', 'select 1', 'commit']],
    ['blanks around', '\n  select 1  ;\t select 2\n', ['select 1', 'select 2']],
    ['semicolons in quotes', `select ';' ; select ";" from t`, [`select ';'`, `select ";" from t`]],
    ['dollar quotes', 'do $x$ begin; $$;$$ end $x$; select 1', ['do $x$ begin; $$;$$ end $x$', 'select 1']],
    [
      'letters of several bytes',
      "select 'né€😀'; select 'ß' as ü; select 3",
      ["select 'né€😀'", "select 'ß' as ü", 'select 3'],
    ],
    [
      'comments around',
      '/* é */ -- x\n select 1 -- é\n; /* b */ select 2 /* c */ -- d',
      ['select 1', 'select 2'],
    ],
    ['comments inside', 'select /* a */ 1 -- b\n + 2', ['select /* a */ 1 -- b\n + 2']],
    ['what looks like a comment', "select '-- é' -- x", ["select '-- é'"]],
  ])('%s', (_, text, expected) => {
    expect(texts(text)).toEqual(expected)
  })

  it('is the whole message if the parser does not understand it', () => {
    const text = 'select 1; selec 2'
    expect(parseStatements(` ${text} `)).toEqual([
      {
        text,
        kind: 'work',
        functions: [],
        tables: [],
        changesSchema: false,
        needsBlock: false,
        isParsed: false,
      },
    ])
    expect(only(`select ${'('.repeat(20_000)}`).isParsed).toBe(false)
    expect(only('select 1').isParsed).toBe(true) // the parser has survived
  })
})

describe('functions', () => {
  it.each<[string, string[]]>([
    ['select 1', []],
    ['select Lower(a), lower(b), app.take($1) from t', ['lower', 'app.take']],
    ['select "Take"(1), app."a.b"()', ['"Take"', 'app."a.b"']],
    ['call app.move(now())', ['app.move', 'now']],
    ['insert into t values (nextval($1)) returning f(a)', ['nextval', 'f']],
    ['update t set a = g(a) where exists (select h(b) from u)', ['g', 'h']],
    [
      'select count(*) over (order by f(a)), t.g from t, generate_series(1, 2) group by k(b)',
      ['count', 'f', 'generate_series', 'k'],
    ],
    ["select 'f(1)' -- g(2)", []],
  ])('%s', (text, expected) => {
    expect([...only(text).functions].sort()).toEqual([...expected].sort())
  })
})

describe('tables', () => {
  it.each<[string, string[]]>([
    ['select 1', []],
    ['select * from Stock, stock s join app.orders using (a)', ['stock', 'app.orders']],
    ['select * from "My Stock", "a.b"."C"', ['"My Stock"', '"a.b"."C"']],
    ['insert into a select * from b', ['a', 'b']],
    ['update a set x = 1 from b where exists (select from c)', ['a', 'b', 'c']],
    ['delete from a using b', ['a', 'b']],
    ['merge into a using b on true when matched then delete', ['a', 'b']],
    ['with c as (select * from a) select * from c', ['a']],
    ['with c as (select * from a) select * from app.c', ['a', 'app.c']],
    ['with a as (update a set x = 1 returning *) select * from a', ['a']],
    ['with a as (select * from a), b as (select * from a) select * from b', ['a']],
    ['with recursive c as (select 1 union select * from c) select * from c', []],
    ['with c as (select 1) insert into c select * from c', ['c']],
    ['select * from (with c as (select 1) table c) x, c', ['c']],
    ['select * from a x for update of x', ['a']],
    ['lock a, app.b in share mode', ['a', 'app.b']],
    ['truncate a, b', ['a', 'b']],
    ['copy a from stdin', ['a']],
    ['drop table a, app.b', ['a', 'app.b']],
    ['drop function f', []],
  ])('%s', (text, expected) => {
    expect([...only(text).tables].sort()).toEqual([...expected].sort())
  })
})

it('returns the same frozen result again, up to a bound', () => {
  const text = 'select f(a) from t'
  const first = parseStatements(text)
  expect(parseStatements(text)).toBe(first)
  for (const value of [first, first[0], first[0]?.functions, first[0]?.tables])
    expect(Object.isFrozen(value)).toBe(true)
  for (let i = 0; i < 2_000; i++) parseStatements(`select ${i} as unmet`)
  const again = parseStatements(text)
  expect(again).not.toBe(first)
  expect(again).toEqual(first)
})
