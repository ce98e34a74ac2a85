import type { Program } from './programs.js'
import { next, rows } from './reduction-corpus.js'

export const hostileSchema = `
  create table nn (id int primary key, u int unique nulls not distinct);
  create domain five as int default 5;
  create table dom (id int primary key, u five unique);
  create table gen (id int primary key, x text, g text generated always as (lower(x)) stored unique);
  create table txt (k text primary key, n int not null);
  create table vc (k varchar(2) primary key, n int not null);
  create table shared1 (id int primary key, no int default nextval('s'));
  create sequence t; create sequence w;
  create table trail (v int, no int default nextval('s'));
  create table job (id int primary key, at timestamptz default clock_timestamp());
  create table own (id int primary key, no serial);
  create table twokeys (a int, b text, n int not null default 0, primary key (a, b));
  create table dup (id int primary key, n int, u int);
  create schema elsewhere;
  create table elsewhere.dup (id int primary key, n int, u int unique);
  create function take() returns void language plpgsql as $$ begin perform pg_advisory_lock(77); end $$;
  create table item (id int primary key, v int);
  create function bump() returns trigger language plpgsql as $$ begin update a set n = n + 1 where id = 1; return new; end $$;
  create trigger bump after insert on item for each row execute function bump();
  create table nullu (id int primary key, u int unique);
  create table first (k int primary key, v int);
  create function log_ok(int) returns boolean language sql stable as 'select count(*) < 1 from log';
  create domain checked as int check (log_ok(value));
  create table withdom (id int primary key, v checked);
  create collation nd (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
  create table ci (id int primary key, k text);
  create unique index on ci (k collate nd);
  create table excl (id int primary key, r int4range, exclude using gist (r with &&));
  create operator === (function = int4eq, leftarg = int, rightarg = int);
  create function logged_op(int, int) returns bigint language sql stable as 'select count(*) from log';
  create operator ### (function = logged_op, leftarg = int, rightarg = int);
`
export const hostileTables = [
  'nn',
  'dom',
  'gen',
  'txt',
  'vc',
  'shared1',
  'trail',
  'own',
  'twokeys',
  'nullu',
  'first',
  'withdom',
  'ci',
  'excl',
  'item',
  'dup',
]
/**
 * Programs made to find what a reduction overlooks: rare syntax, hidden locks, keys that are equal and written differently.
 * A reduction missed an end of each of them once.
 */
export const hostile: Record<string, Program> = {
  'a condition on a row that is changed': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', next('s')]],
      [[next('s'), 'update a set n = 100 where id = 1 and n = 5']],
    ],
  },
  'a condition on a row that is locked': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', next('s')]],
      [[next('s'), 'select n from a where id = 1 and n = 5 for update']],
    ],
  },
  'a condition on a row that is deleted': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', 'insert into numbered (v) values (1)']],
      [['insert into numbered (v) values (2)', 'delete from a where id = 1 and n = 5']],
    ],
  },
  // The second actor waits for row 1. It has checked row 2 before the wait, and does not look at it again.
  'a condition on several rows, checked before and after a wait': {
    setup: 'insert into a values (1, 0, 10), (2, 5, 20)',
    actors: [
      [['update a set n = 0 where id = 1', 'update a set n = 0 where id = 2', next('s')]],
      [[next('s'), 'select id from a where id in (1, 2) and n = 0 order by id for update']],
    ],
  },
  'epq nextval': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1']],
      [`update a set n = nextval('s') where id = 1 returning n`],
    ],
  },
  'resumed draws': {
    setup: rows,
    actors: [
      [next('s')],
      [['update a set n = 5 where id = 1', 'insert into a values (3, 0, 30)']],
      [`select n, nextval('s') from a order by id for update`],
    ],
  },
  'rollback to sure': {
    setup: rows,
    actors: [
      [
        [
          'savepoint x',
          'update a set n = n + 1 where id = 1',
          'rollback to savepoint x',
          'select n from a where id = 1',
          'update a set n = n + 1 where id = 1',
        ],
      ],
      ['update a set n = n * 2 + 3 where id = 1'],
    ],
  },
  'nulls not distinct': { actors: [['insert into nn (id) values (1)'], ['insert into nn (id) values (2)']] },
  'default of a domain': {
    actors: [['insert into dom (id) values (1)'], ['insert into dom (id) values (2)']],
  },
  'generated unique': {
    setup: `insert into gen (id, x) values (1, 'a'), (2, 'b')`,
    actors: [[`update gen set x = 'K' where id = 1`], [`update gen set x = 'k' where id = 2`]],
  },
  'lock nowait vs reader': {
    setup: rows,
    actors: [
      [['select n from a where id = 1', next('s')]],
      [[next('s'), 'lock table a in access exclusive mode nowait']],
    ],
  },
  'lock table deadlock': {
    setup: `${rows}; insert into parent values (1, 0)`,
    actors: [
      [['update parent set n = 1 where id = 1', 'lock table a in access exclusive mode']],
      [['select n from a where id = 1', 'update parent set n = 2 where id = 1']],
    ],
  },
  'cte shadow': {
    setup: rows,
    actors: [
      ['update a set n = 1 where id = 1'],
      ['with a as (select n from a where id = 1) select n from a'],
    ],
  },
  'times told apart': {
    actors: [
      ['insert into job (id) values (1)', 'select id from job where at = (select min(at) from job)'],
      ['insert into job (id) values (2)'],
    ],
  },
  'shared sequence default': {
    actors: [['insert into shared1 (id) values (1)'], ['insert into shared1 (id) values (2)']],
  },
  'nextval case': {
    actors: [[`insert into log values (nextval('S'))`], [`insert into log values (nextval('s') * 10)`]],
  },
  'columns that a query leaves out': {
    actors: [[`insert into trail select 1`], [`insert into trail select 2`]],
  },
  'update default': {
    setup: 'insert into own (id, no) values (1, 0), (2, 0)',
    actors: [['update own set no = default where id = 1'], ['update own set no = default where id = 2']],
  },
  'rr lock table no snapshot': {
    setup: rows,
    isolation: 'repeatable read',
    actors: [
      [['lock table log in share mode', 'select n from a where id = 2', 'select n from a where id = 1']],
      [['lock table log in exclusive mode nowait'], 'update a set n = 1 where id = 1'],
    ],
  },
  'chain sure': {
    setup: rows,
    actors: [
      [
        [
          'update a set n = n + 1 where id = 1',
          'commit and chain',
          next('s'),
          'update a set n = n + 1 where id = 1',
        ],
      ],
      [[next('s'), 'update a set n = n * 2 + 3 where id = 1 returning n']],
    ],
  },
  'unique row deadlock': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 2', 'insert into a values (3, 0, 10)']],
      [['update a set n = 2 where id = 1', 'update a set n = 2 where id = 2']],
    ],
  },
  'two statements in one message': {
    setup: rows,
    actors: [
      ['lock table log in share mode; update a set n = 1 where id = 1'],
      ['select n from a where id = 1'],
    ],
  },
  'column alias': {
    setup: 'insert into a values (1, 2, 10), (2, 0, 20)',
    actors: [['update a set n = 7 where id = 1'], ['select u from a as t(n, id, u) where id = 2']],
  },
  union: {
    setup: rows,
    actors: [['update a set n = 1 where id = 1'], ['select n from a where id = 1 union all select 5']],
  },
  'union insert': {
    setup: rows,
    actors: [
      ['update a set n = 1 where id = 1'],
      ['insert into log (select n from a where id = 1 union select n from a where id = 2)'],
    ],
  },
  'agg ties': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select array_agg(v order by v > 5) from heap'],
    ],
  },
  'array sublink': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select array(select v from heap)'],
    ],
  },
  'insert select identity': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'insert into numbered (v) select v from heap'],
    ],
  },
  'update nextval': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', `update heap set v = v * 10 + nextval('s')`],
    ],
  },
  offset: {
    actors: [['insert into heap values (1)'], ['insert into heap values (2)', `select v from heap offset 1`]],
  },
  'subselect for update': {
    setup: rows,
    actors: [
      [
        [
          'select * from (select n from a where id = 1) x for update',
          'update a set n = n + 1 where id = 1',
          next('s'),
        ],
      ],
      [['select * from (select n from a where id = 1) x for update', next('s')]],
    ],
  },
  'key share': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', next('s')]],
      [[next('s'), 'select n from a where id = 1 for key share']],
    ],
  },
  'key share plain': {
    setup: rows,
    actors: [[['update a set n = 1 where id = 1']], [['select n from a where id = 1 for key share']]],
  },
  overriding: {
    actors: [
      ['insert into numbered (id, v) overriding user value values (1, 10)'],
      ['insert into numbered (id, v) overriding user value values (2, 20)'],
    ],
  },
  'any comma': {
    setup: `insert into txt values ('a,b', 0)`,
    actors: [[`update txt set n = 1 where k = 'a,b'`], [`select n from txt where k = any ('{"a,b"}')`]],
  },
  tablesample: {
    setup: rows,
    actors: [['update a set n = 1 where id = 1'], ['select sum(n) from a tablesample bernoulli (100)']],
  },
  'varchar typmod': {
    setup: `insert into txt values ('ab', 0)`,
    actors: [[`update txt set n = 1 where k = 'ab'`], [`select n from txt where k = 'abc'::varchar(2)`]],
  },
  'varchar blanks': { actors: [[`insert into vc values ('ab', 1)`], [`insert into vc values ('ab ', 2)`]] },
  'int text': {
    setup: `insert into txt values ('1', 0)`,
    actors: [[`update txt set n = 1 where k = '1'`], [`select n from txt where k = '01'::int::text`]],
  },
  'sure cte': {
    setup: rows,
    actors: [
      [
        [
          'with u as (update a set n = n + 1 where id = 1 and n = 5 returning n) select count(*) from u',
          next('s'),
          'update a set n = n * 2 + 1 where id = 1',
        ],
      ],
      [[next('s'), 'update a set n = n + 10 where id = 1']],
    ],
  },
  'sure strength': {
    setup: 'insert into parent values (1, 0)',
    actors: [
      [
        [
          'insert into parent values (1, 1) on conflict (id) do update set n = parent.n + 1',
          next('t'),
          'select n from parent where id = 1 for update',
          next('s'),
        ],
      ],
      [[next('t'), 'insert into child values (1, 1)', next('s')]],
    ],
  },
  operator: { actors: [['insert into log values (1)'], ['select 1 ### 2']] },
  'json arrayagg': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select json_arrayagg(v) from heap'],
    ],
  },
  'advisory relock': {
    actors: [
      [
        [
          'select pg_advisory_lock(1)',
          'select pg_advisory_unlock(1)',
          next('s'),
          'select pg_advisory_lock(1)',
          next('t'),
          'select pg_advisory_unlock(1)',
        ],
      ],
      [[next('s'), 'select pg_advisory_xact_lock(1)', next('t')]],
    ],
  },
  'savepoint advisory': {
    actors: [
      [
        [
          'savepoint x',
          'select pg_advisory_xact_lock(1)',
          'rollback to x',
          next('s'),
          'select pg_advisory_xact_lock(1)',
          next('t'),
        ],
      ],
      [[next('s'), 'select pg_advisory_xact_lock(1)', next('t')]],
    ],
  },
  'chain rr': {
    setup: rows,
    isolation: 'repeatable read',
    actors: [
      [
        [
          'insert into log values (1)',
          'commit and chain',
          'select n from a where id = 2',
          'select n from a where id = 1',
        ],
      ],
      [['select count(*) from log', 'update a set n = 1 where id = 1']],
    ],
  },
  'nulls order': {
    actors: [
      ['insert into nullu values (1)'],
      ['insert into nullu values (2)', 'select id, count(*) over () from nullu order by u limit 1'],
    ],
  },
  'update from many': {
    setup: rows,
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        `update a set n = h.v * 10 + (select count(*) from heap) from heap h where a.id = 1`,
      ],
    ],
  },
  'any value': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select any_value(v), count(*) from heap'],
    ],
  },
  xmax: {
    setup: rows,
    actors: [['select xmax <> 0 from a where id = 1'], ['select n from a where id = 1 for update']],
  },
  'index collation': { actors: [[`insert into ci values (1, 'A')`], [`insert into ci values (2, 'a')`]] },
  'domain check': { actors: [['insert into withdom values (1, 1)'], ['insert into log values (1)']] },
  'comment level': {
    setup: rows,
    actors: [
      [
        [
          'set transaction isolation level repeatable /* */ read',
          'select n from a where id = 2',
          next('s'),
          'select n from a where id = 1',
        ],
      ],
      [['update a set n = 1 where id = 1'], next('s')],
    ],
  },
  'sure upsert other key': {
    setup: rows,
    actors: [
      [
        [
          'insert into a values (5, 1, 10) on conflict (u) do update set n = a.n + 1',
          next('s'),
          'insert into a values (5, 1, 51)',
        ],
      ],
      [[next('s'), 'insert into a values (5, 2, 52)']],
    ],
  },
  'multirow draws': {
    actors: [
      [`select nextval('own_no_seq')`],
      [['insert into own (id, no) values (1, 0)', 'rollback']],
      [`insert into own (id) values (1), (2)`],
    ],
  },
  'first wins': {
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        'insert into first select 1, v * 10 + count(*) over () from heap on conflict do nothing',
      ],
    ],
  },
  'sure savepoint error': {
    setup: rows,
    actors: [
      [
        [
          'savepoint x',
          'update a set n = n + 1 where id = 1',
          'rollback to x',
          next('s'),
          'update a set n = n + 1 where id = 1',
        ],
      ],
      [[next('s'), 'update a set n = n * 2 + 3 where id = 1']],
    ],
  },
  'update same key value': {
    setup: rows,
    actors: [
      [['update a set u = 10 where id = 1', next('s'), 'select n from a where id = 1 for update', next('t')]],
      [[next('s'), 'select n from a where id = 1 for key share', next('t')]],
    ],
  },
  'a lock tried in vain, first': {
    actors: [
      [['select pg_try_advisory_xact_lock(1)', next('s'), 'select pg_advisory_xact_lock(1)', next('t')]],
      [['select pg_advisory_xact_lock(1)']],
      [[next('s'), 'select pg_advisory_xact_lock(1)', next('t')]],
    ],
  },
  'do nothing': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 2', 'insert into a values (3, 0, 10) on conflict do nothing']],
      [['update a set n = 2 where id = 1', 'update a set n = 2 where id = 2']],
    ],
  },
  'a condition, as a claim has it': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', 'insert into numbered (v) values (1)']],
      [['insert into numbered (v) values (2)', 'update a set n = 6 where id = 1 and n = 5 returning n']],
    ],
  },
  'count for update': {
    setup: `insert into a values (2, 0, 20)`,
    actors: [
      [
        [
          'select count(*) from (select id from a where id = 1 for update) x',
          next('s'),
          'insert into a values (1, 1, 11)',
        ],
      ],
      [[next('s'), 'insert into a values (1, 2, 12)']],
    ],
  },
  'composite fn': { actors: [['insert into log values (1)'], ['select 1 ### 2 limit 1']] },
  'set schema': {
    actors: [
      [["set local schema 'elsewhere'", 'insert into dup values (1, 0, 10)']],
      [["set local schema 'elsewhere'", 'insert into dup values (2, 0, 10)']],
    ],
  },
  'hidden session lock': {
    actors: [
      ['select take()', next('s'), 'select pg_advisory_unlock(77)'],
      [next('s'), 'select pg_try_advisory_xact_lock(77)'],
    ],
  },
  'hidden session lock, released before the commit': {
    actors: [
      [['select take()', next('s'), 'select pg_advisory_unlock(77)', next('s')]],
      [next('s'), 'select pg_try_advisory_xact_lock(77)', next('s')],
    ],
  },
  'hidden lock freed by error': {
    setup: rows,
    actors: [
      [['insert into item values (1, 1)', next('s'), 'insert into a values (2, 0, 99)']],
      [[next('s'), 'select n from a where id = 1 for update nowait']],
    ],
  },
  'hidden lock rollback to': {
    setup: rows,
    actors: [
      [['savepoint x', 'insert into item values (1, 1)', next('s'), 'rollback to x']],
      [[next('s'), 'select n from a where id = 1 for update nowait']],
    ],
  },
  'a lock of a trigger, in a circle': {
    setup: rows,
    actors: [
      [['insert into item values (1, 1)', 'update a set n = 5 where id = 2']],
      [['update a set n = 7 where id = 2', 'update a set n = 8 where id = 1']],
    ],
  },
  'sure upsert other unique': {
    setup: rows,
    actors: [
      [
        [
          'insert into a values (1, 5, 77) on conflict (id) do update set n = a.n + 1',
          next('s'),
          'insert into a values (8, 1, 77)',
        ],
      ],
      [[next('s'), 'insert into a values (9, 2, 77)']],
    ],
  },
  'lock table rollback to': {
    actors: [
      [['savepoint x', 'lock table log', next('s'), 'rollback to x']],
      [[next('s'), 'lock table log in access share mode nowait']],
    ],
  },
  'a text key, written as a number': {
    actors: [['insert into txt values (1e1, 1)'], [`insert into txt values ('10', 2)`]],
  },
  'a text key, from a number': {
    actors: [[`insert into txt values ('007'::int, 1)`], [`insert into txt values ('7', 2)`]],
  },
  'a text key, from a uuid': {
    actors: [
      [`insert into txt values ('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, 1)`],
      [`insert into txt values ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 2)`],
    ],
  },
  'text keys, cut short': {
    setup: `insert into txt values ('a', 1)`,
    actors: [
      [`update txt set n = n + 1 where k = any ('{ab}'::varchar(1)[])`],
      [`update txt set n = n * 2 where k = 'a'`],
    ],
  },
  'the rest of a statement that waits': {
    setup: 'insert into parent values (1, 0), (2, 0), (3, 0)',
    actors: [
      ['update parent set n = 7 where id = 3'],
      [['update parent set n = 5 where id = 2', 'select id from parent where id = 1 for update skip locked']],
      [['select * from parent where id in (1, 2, 3) order by id for update']],
    ],
  },
}
