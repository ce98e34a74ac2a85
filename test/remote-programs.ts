import type { Program } from './programs.js'
import { next, rows } from './reduction-corpus.js'

export const remoteSchema = `
  create table acct (id int generated always as identity primary key, email text unique, nick text unique);
  create table gchild (id int primary key, x int, parent int generated always as (x) stored references parent);
  create table ev (id int primary key, ms numeric);
  create table v7 (id uuid primary key default uuidv7(), v int);
  create table twoseq (id int primary key, no int default nextval('s') * 1000 + nextval('t'));
  create table outbox (id int generated always as identity primary key, tx xid8 default pg_current_xact_id(), v int);
  create function peek(a) returns bigint language sql stable as 'select count(*) from log';
  create domain checked2 as checked;
  create table withdom2 (id int primary key, v checked2);
  create table opcheck (id int primary key, v int check ((v ### 1) < 1));
  create table f8 (v float8);
  create table pos (id int primary key, p int unique);
  create table payments (id int primary key, at timestamptz default now());
  create table shipments (id int primary key, at timestamptz default now());
  create table nodef (id int primary key, at timestamptz);
  create table jobs (id int primary key, status text default 'queued', lease timestamptz default '2000-01-01');
  create table acc (id int primary key, bal int not null, ver int not null);
  create table stamp2 (id int primary key, at timestamptz default clock_timestamp());
  create type mood as enum ('x', 'y');
  create function to_mood(int) returns mood language sql stable as $$
    select case when count(*) > 0 then 'x' else 'y' end::mood from log $$;
  create cast (int as mood) with function to_mood(int);
`

export const remoteTables = [
  'acct',
  'gchild',
  'twoseq',
  'withdom2',
  'opcheck',
  'f8',
  'pos',
  'acc',
  'elsewhere.dup',
]

/**
 * Programs in which two statements depend on each other although they name nothing in common: by what happens after a wait,
 * by the order of rows, by time, by code that runs where no function is called.
 */
export const remote: Readonly<Record<string, Program>> = {
  'a second unique key, after the wait for the first': {
    actors: [
      [[`insert into acct (email, nick) values ('e', 'x')`, 'rollback']],
      [`insert into acct (email, nick) values ('e', 'n')`],
      [`insert into acct (email, nick) values ('f', 'n')`],
    ],
  },
  'rows that lie elsewhere each time': {
    setup: rows,
    isolation: 'repeatable read',
    actors: [
      [['update a set n = 7 where id = 1', 'rollback']],
      ['update a set n = n + 1 where id in (1, 2)'],
      ['update a set n = 5 where id = 2'],
    ],
  },
  'a condition on several rows': {
    setup: 'insert into a values (1, 0, 10), (2, 5, 20)',
    actors: [
      [['update a set n = 0, u = u + 1 where id in (1, 2)']],
      ['select id, u from a where id in (1, 2) and n = 0 order by id for update'],
    ],
  },
  'unique values, shifted in the order of rows': {
    actors: [
      ['insert into pos values (1, 10)'],
      ['insert into pos values (2, 11)', 'update pos set p = p + 1'],
    ],
  },
  'a deadlock by the order of rows': {
    actors: [
      ['insert into heap values (2)', 'update heap set v = v + 10'],
      [
        'insert into heap values (1)',
        ['update heap set v = v + 100 where v = 2', 'update heap set v = v + 100 where v = 1'],
      ],
    ],
  },
  'an order that is copied': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'insert into log select v from heap', 'select v from log limit 1'],
    ],
  },
  'an order that is copied by DELETE': {
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        'with d as (delete from heap returning v) insert into log select v from d',
        'select v, (select count(*) from log) from log limit 1',
      ],
    ],
  },
  'an error that comes first by the order of rows': {
    actors: [
      ['insert into heap values (0)'],
      ['insert into heap values (-1)', ['select count(*) from heap', 'select 1 / v, sqrt(v) from heap']],
    ],
  },
  'ids in the order of time': {
    actors: [
      ['insert into v7 (v) values (1)'],
      ['insert into v7 (v) values (2)', 'select v from v7 order by id'],
    ],
  },
  'a time as a number': {
    actors: [
      ['insert into ev values (1, extract(epoch from clock_timestamp()))'],
      [
        'insert into ev values (2, extract(epoch from clock_timestamp()))',
        'select (select ms from ev where id = 1) < (select ms from ev where id = 2)',
      ],
    ],
  },
  'the number of a transaction': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', 'insert into outbox (v) values (1)']],
      [
        ['update a set n = 1 where id = 2', 'insert into outbox (v) values (2)'],
        'select id, v from outbox order by tx',
      ],
    ],
  },
  'a time against that of a transaction': {
    setup: rows,
    actors: [
      ['insert into stamp2 (id) values (1)'],
      [['select n from a where id = 1', 'select at < now() from stamp2 where id = 1']],
    ],
  },
  'a lock of a table with the same name': {
    setup: 'insert into dup values (1, 0, 0); insert into elsewhere.dup values (1, 0, 0)',
    actors: [
      [
        [
          'update dup set n = n + 1 where id = 1',
          next('s'),
          'update elsewhere.dup set n = n * 2 + 1 where id = 1',
        ],
      ],
      [[next('s'), 'update elsewhere.dup set n = n + 10 where id = 1']],
    ],
  },
  'a foreign key that is computed': {
    setup: 'insert into gchild (id, x) values (1, null)',
    actors: [[['insert into parent values (1, 0)']], ['update gchild set x = 1 where id = 1']],
  },
  'a function called like a column': {
    setup: rows,
    actors: [['insert into log values (1)'], ['select a.peek from a where id = 1']],
  },
  'a cast to a domain': { actors: [['insert into log values (1)'], ['select 1::checked']] },
  'a cast of one’s own': { actors: [['insert into log values (1)'], ['select 1::mood']] },
  'a domain over a domain': {
    actors: [['insert into log values (1)'], ['insert into withdom2 values (1, 1)']],
  },
  'an operator in a check': {
    actors: [['insert into log values (1)'], ['insert into opcheck values (1, 1)']],
  },
  'a join under another name': {
    setup: `insert into a values (1, 5, 10), (2, 0, 20); insert into log values (1)`,
    actors: [
      ['update a set u = 77 where id = 1'],
      ['select a.u from (a cross join log) as a(x, id, u, v) where a.id = 5'],
    ],
  },
  'columns under other names': {
    actors: [
      ['insert into a values (1, 0, 1)'],
      [
        'insert into a values (2, 0, 2)',
        'select u, (select count(*) from a) from a as t(x, id, u) order by id limit 1',
      ],
    ],
  },
  'a sequence with a blank before it': { actors: [[`select nextval(' s')`], [next('s')]] },
  'two sequences in one default': {
    actors: [['insert into twoseq (id) values (1)'], [next('t')]],
  },
  'an aggregate that keeps order, strictly': {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select json_agg_strict(v) from heap'],
    ],
  },
  'a sum that is rounded': {
    setup: 'insert into f8 values (1e20)',
    actors: [['insert into f8 values (1)'], ['insert into f8 values (-1e20)', 'select sum(v) from f8']],
  },
  'times in two tables': {
    actors: [
      ['insert into payments (id) values (1)'],
      [
        'insert into shipments (id) values (1)',
        'select p.at < s.at from payments p join shipments s using (id)',
      ],
    ],
  },
  'a lease that ends while one waits for it': {
    setup: 'insert into jobs (id) values (1)',
    actors: [
      [
        [
          'select id from jobs where id = 1 for update',
          'update jobs set lease = clock_timestamp() where id = 1',
        ],
      ],
      ['select id from jobs where id = 1 and lease < now() for update'],
    ],
  },
  'a time that comes from elsewhere in the statement': {
    setup: `${rows}; insert into nodef values (1), (2)`,
    actors: [
      [['select n from a where id = 1', `update nodef set at = 'now' where id = 1`]],
      [
        [
          'select n from a where id = 1',
          'with t as (select now() as t) update nodef set at = t.t from t where id = 2',
        ],
        'select id from nodef order by at',
      ],
    ],
  },
  'times in whole rows': {
    actors: [
      ['insert into stamp2 (id) values (1)'],
      [
        'insert into stamp2 (id) values (2)',
        `select to_jsonb(p) ->> 'at' < to_jsonb(q) ->> 'at' from stamp2 p, stamp2 q where p.id = 1 and q.id = 2`,
      ],
    ],
  },
  'the first of several rows that a query finds': {
    setup: rows,
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        'update a set n = h.v * 10 + h.c from (select v, (select count(*) from heap) c from heap) h where a.id = 1',
      ],
    ],
  },
  'an order that is copied within a statement': {
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        'with i as (insert into log select v from heap returning v) select count(*) from i',
        'select v, (select count(*) from log) from log limit 1',
      ],
    ],
  },
  'a lock of a row that does not meet the condition any more': {
    setup: 'insert into acc values (1, 10, 0)',
    actors: [
      [
        'update acc set ver = 1 where id = 1',
        ['select pg_advisory_xact_lock(7)', 'select bal from acc where id = 1 for update nowait'],
      ],
      [
        [
          'select pg_advisory_lock(7)',
          'update acc set bal = 0, ver = 1 where id = 1 and ver = 0',
          'select pg_advisory_unlock(7)',
        ],
      ],
    ],
  },
}
