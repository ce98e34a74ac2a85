import type { Program } from './programs.js'

export const schema = `
  create table a (id int primary key, n int not null, u int unique);
  create table log (v int);
  create table heap (v int);
  create table parent (id int primary key, n int not null);
  create table child (id int primary key, parent int not null references parent);
  create table numbered (id int generated always as identity primary key, v int);
  create table audited (id int primary key, n int not null);
  create table audit (v int);
  create table stamped (id int generated always as identity primary key, at timestamptz default now(), v int);
  create sequence s;
  create view seen as select id, n from a;
  create table ruled (id int primary key, n int not null);
  create rule also as on update to ruled do also insert into audit values (new.n);
  create function note() returns trigger language plpgsql as $$
    begin insert into audit select count(*) from log; return new; end $$;
  create trigger note after update on audited for each row execute function note();
  create function logged() returns bigint language sql volatile as 'select count(*) from log';
`

export const tables = ['a', 'log', 'heap', 'parent', 'child', 'numbered', 'audited', 'audit', 'ruled']

export const rows = `insert into a values (1, 0, 10), (2, 0, 20)`
export const next = (sequence: string) => `select nextval('${sequence}')`

/** Small programs, each with something that a careless reduction gets wrong. */
export const corpus: Readonly<Record<string, Program>> = {
  'times of transactions, compared': {
    setup: rows,
    actors: [
      [['select n from a where id = 1', 'insert into stamped (v) values (1)']],
      [
        ['select n from a where id = 1', 'insert into stamped (v) values (2)'],
        'select id, v from stamped order by at',
      ],
    ],
  },
  'a counter, read and written': {
    setup: rows,
    actors: Array.from({ length: 2 }, () => [
      'select n from a where id = 1',
      'update a set n = n + 1 where id = 1',
    ]),
  },
  'a counter in a transaction': {
    setup: rows,
    actors: Array.from({ length: 2 }, () => [
      ['select n from a where id = 1', 'update a set n = n + 1 where id = 1'],
    ]),
  },
  'write skew': {
    setup: rows,
    actors: [
      [['select sum(n) from a', 'update a set n = n + 1 where id = 1']],
      [['select sum(n) from a', 'update a set n = n + 1 where id = 2']],
    ],
  },
  'two updates in opposite order': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', 'update a set n = 1 where id = 2']],
      [['update a set n = 2 where id = 2', 'update a set n = 2 where id = 1']],
    ],
  },
  'three in a circle': {
    setup: `${rows}, (3, 0, 30)`,
    actors: [
      [['update a set n = 1 where id = 1', 'update a set n = 1 where id = 2']],
      [['update a set n = 2 where id = 2', 'update a set n = 2 where id = 3']],
      [['update a set n = 3 where id = 3', 'update a set n = 3 where id = 1']],
    ],
  },
  'a scan that waits sees the rest as of before': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', 'insert into a values (3, 0, 30)']],
      ['update a set n = n + 1 where n >= 0'],
    ],
  },
  'a row found by key that is not there yet': {
    setup: rows,
    actors: [[['insert into a values (3, 0, 30)']], ['update a set n = n + 1 where id = 3']],
  },
  'a row found by key that was added and not committed': {
    setup: rows,
    actors: [
      [['insert into a values (3, 0, 30)', `select nextval('s')`]],
      [[`select nextval('s')`, 'update a set n = n + 1 where id = 3']],
    ],
  },
  'a lock of a row that is not there': {
    actors: [
      [['select n from a where id = 1 for update', `select nextval('s')`, 'insert into a values (1, 1, 10)']],
      [[`select nextval('s')`, 'insert into a values (1, 2, 20)', 'rollback']],
    ],
  },
  // The first actor has no lock after its first statement, so its second one races with the third actor.
  'a lock that found no row, and a lock of the row that was added': {
    actors: [
      [['select n from a where id = 1 for update', 'update a set n = n * 2 + 1 where id = 1']],
      ['insert into a values (1, 0, 10)'],
      ['update a set n = n + 10 where id = 1'],
    ],
  },
  'a row that is deleted and comes back': {
    setup: rows,
    actors: [
      [['delete from a where id = 1', 'insert into a values (1, 7, 10)']],
      ['update a set n = n + 1 where id = 1'],
    ],
  },
  'a row whose key is changed': {
    setup: rows,
    actors: [
      [['update a set id = 5 where id = 1']],
      ['update a set n = n + 1 where id = 5', 'select n from a where id = 1'],
    ],
  },
  'the same key twice': {
    actors: [
      [['insert into a values (1, 1, 10)', 'insert into log values (1)']],
      [['insert into a values (1, 2, 20)', 'insert into log values (2)']],
    ],
  },
  'another unique column': {
    actors: [
      [['insert into a values (1, 1, 10)']],
      [['insert into a values (2, 2, 10)', 'insert into log values (2)']],
    ],
  },
  'a unique column that is freed': {
    setup: rows,
    actors: [[['delete from a where id = 1']], ['insert into a values (3, 3, 10)']],
  },
  'a unique column that is changed': {
    setup: rows,
    actors: [
      [['update a set u = 30 where id = 1']],
      ['insert into a values (3, 3, 30)', 'insert into a values (4, 4, 10)'],
    ],
  },
  'insert, or nothing': {
    actors: Array.from({ length: 2 }, (_, i) => [
      [`insert into a values (1, ${i}, 10) on conflict do nothing`, 'select n from a'],
    ]),
  },
  'insert, or update': {
    actors: Array.from({ length: 2 }, (_, i) => [
      [
        `insert into a values (1, ${i + 1}, 10) on conflict (id) do update set n = a.n + 10`,
        'select n from a where id = 1',
      ],
    ]),
  },
  'insert, or update by another key': {
    setup: rows,
    actors: [
      [`insert into a values (5, 1, 10) on conflict (u) do update set n = a.n + 10`],
      [['update a set n = 7 where id = 1', 'insert into log values (1)']],
    ],
  },
  'skip locked': {
    setup: rows,
    actors: Array.from({ length: 2 }, () => [
      [
        'select id from a where n = 0 order by id limit 1 for update skip locked',
        'update a set n = 1 where id = 1',
      ],
    ]),
  },
  'skip locked, and one who rolls back': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', 'rollback']],
      ['select id from a order by id limit 1 for update skip locked', 'insert into log values (1)'],
    ],
  },
  'nowait, and one who fails': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', 'insert into a values (2, 0, 0)']],
      ['select n from a where id = 1 for update nowait', 'insert into log values (1)'],
    ],
  },
  'nowait, and one who fails when another commits': {
    setup: rows,
    actors: [
      [['insert into a values (3, 0, 30)']],
      [['update a set n = 1 where id = 1', 'insert into a values (3, 0, 31)']],
      ['select n from a where id = 1 for update nowait'],
    ],
  },
  'a lock that is shared': {
    setup: rows,
    actors: [
      [['select n from a where id = 1 for share', 'insert into log select n from a where id = 1']],
      [['select n from a where id = 1 for share', 'update a set n = n + 1 where id = 1']],
    ],
  },
  'advisory locks around a read and a write': {
    setup: rows,
    actors: Array.from({ length: 2 }, () => [
      [
        'select pg_advisory_xact_lock(1)',
        'select n from a where id = 1',
        'update a set n = n + 1 where id = 1',
      ],
    ]),
  },
  'an advisory lock that is tried': {
    setup: rows,
    actors: [
      ['select pg_advisory_lock(1)', 'update a set n = 1 where id = 1', 'select pg_advisory_unlock(1)'],
      ['select pg_try_advisory_lock(1)', 'select pg_advisory_unlock_all()'],
    ],
  },
  'advisory locks in opposite order': {
    actors: [
      [['select pg_advisory_xact_lock(1)', 'select pg_advisory_xact_lock(2)']],
      [['select pg_advisory_xact_lock(2)', 'select pg_advisory_xact_lock(1)']],
    ],
  },
  'numbers of a sequence': {
    actors: Array.from({ length: 2 }, () => [`insert into log values (nextval('s'))`]),
  },
  'numbers of a sequence, told apart': {
    actors: [[`insert into log values (nextval('s'))`], [`insert into log values (nextval('s') * 10)`]],
  },
  'numbers that a table draws': {
    actors: Array.from({ length: 2 }, (_, i) => [`insert into numbered (v) values (${i})`]),
  },
  'a child of a parent that comes': {
    actors: [
      [['insert into parent values (1, 0)', 'insert into log values (1)']],
      ['insert into child values (1, 1)'],
    ],
  },
  'a child of a parent that goes': {
    setup: 'insert into parent values (1, 0)',
    actors: [
      [['delete from parent where id = 1', 'insert into log values (1)']],
      ['insert into child values (1, 1)'],
    ],
  },
  'a child, and its parent': {
    setup: 'insert into parent values (1, 0)',
    actors: [
      [['insert into child values (1, 1)', 'update parent set n = n + 1 where id = 1']],
      [['insert into child values (2, 1)', 'update parent set n = n + 1 where id = 1']],
    ],
  },
  'a lock of a table': {
    setup: rows,
    actors: [
      [['lock table a in access exclusive mode', 'update a set n = 1 where id = 1']],
      ['select n from a where id = 1', 'update a set n = n + 1 where id = 2'],
    ],
  },
  'a lock of a table, and a read': {
    setup: rows,
    actors: [[['lock table a', 'update a set n = 1 where id = 1']], ['select n from a where id = 1']],
  },
  'a trigger that looks elsewhere': {
    setup: 'insert into audited values (1, 0)',
    actors: [['update audited set n = 1 where id = 1'], ['insert into log values (1)']],
  },
  'a view': {
    setup: rows,
    actors: [['update a set n = 1 where id = 1'], ['select n from seen where id = 1']],
  },
  'a rule': {
    setup: 'insert into ruled values (1, 0)',
    actors: [['update ruled set n = 1 where id = 1'], ['select v from audit']],
  },
  'a volatile function': {
    actors: [['insert into log values (1)'], ['select logged()']],
  },
  // The table `heap` never fills a page, so its rows lie in the order in which they were inserted.
  'rows taken as they lie': {
    actors: [1, 2].map((v) => [`insert into heap values (${v})`, 'select v from heap limit 1']),
  },
  'rows taken as they lie, from a query within': {
    actors: [1, 2].map((v) => [
      `insert into heap values (${v})`,
      'select v from (select v from heap) x limit 1',
    ]),
  },
  'rows taken as they lie, by another name': {
    actors: [1, 2].map((v) => [
      `insert into a values (${v}, 0, ${v})`,
      'select u, n as id from a order by id limit 1',
    ]),
  },
  'several rows returned as they lie': {
    actors: [['insert into heap values (1)', 'select v from heap'], ['insert into heap values (2)']],
  },
  'a join under a lock': {
    setup: `${rows}; insert into parent values (1, 1), (2, 2)`,
    actors: [
      [['update a set n = 2 where id = 1']],
      ['update a set u = p.n * 100 from parent p where a.id = 1 and p.id = a.n'],
    ],
  },
  'a subquery in a write': {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', 'update a set n = 6 where id = 2']],
      ['update a set n = (select sum(n) from a) where id = 2'],
    ],
  },
  'a savepoint that gives a lock back': {
    setup: rows,
    actors: [
      [
        [
          'savepoint x',
          'update a set n = 1 where id = 1',
          'rollback to savepoint x',
          'update a set n = 1 where id = 2',
        ],
      ],
      [['select n from a where id = 1 for update nowait', 'update a set n = 2 where id = 2']],
    ],
  },
  'an error that a savepoint survives': {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', 'savepoint x', 'insert into a values (2, 0, 0)']],
      ['select n from a where id = 1 for update nowait'],
    ],
  },
  'rows by a list': {
    setup: rows,
    actors: [
      [['update a set n = n + 1 where id in (1, 2)', 'select n from a where id = 2']],
      [['update a set n = n * 3 where id = any (array[2])', 'select n from a where id = 1']],
    ],
  },
  'repeatable read: what is read later': {
    setup: rows,
    isolation: 'repeatable read',
    actors: [
      [['update a set n = 1 where id = 1']],
      [['select n from a where id = 2', 'select n from a where id = 1']],
    ],
  },
  'repeatable read: what was committed before it is read': {
    setup: rows,
    isolation: 'repeatable read',
    actors: [
      [['update a set n = 1 where id = 1'], `select nextval('s')`],
      [['select n from a where id = 2', `select nextval('s')`, 'select n from a where id = 1']],
    ],
  },
  'repeatable read: what was committed before it is read, said by BEGIN': {
    setup: rows,
    begin: 'begin isolation level repeatable read; set local work_mem = 200',
    actors: [
      [['update a set n = 1 where id = 1'], `select nextval('s')`],
      [
        ['insert into log values (1)', 'rollback'],
        ['select n from a where id = 2', `select nextval('s')`, 'select n from a where id = 1'],
      ],
    ],
  },
  'repeatable read: an update that loses': {
    setup: rows,
    isolation: 'repeatable read',
    actors: Array.from({ length: 2 }, () => [
      ['select n from a where id = 2', 'update a set n = n + 1 where id = 1'],
    ]),
  },
  'repeatable read: a lock comes after the snapshot': {
    setup: rows,
    isolation: 'repeatable read',
    actors: Array.from({ length: 2 }, () => [
      [
        'select pg_advisory_xact_lock(1)',
        'select n from a where id = 1',
        'insert into log values (1)',
        'update a set n = n + 1 where id = 2',
      ],
    ]),
  },
  serializable: {
    setup: rows,
    isolation: 'serializable',
    actors: [
      [['select sum(n) from a', 'update a set n = n + 1 where id = 1']],
      [['select sum(n) from a', 'update a set n = n + 1 where id = 2']],
    ],
  },
}
