import type { Program } from './programs.js'
export const schema2 = `
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
  create schema if not exists zzo; drop table if exists zzo.dup; create table zzo.dup (id int primary key, n int, u int unique);
  create function take() returns void language plpgsql as $$ begin perform pg_advisory_lock(77); end $$;
  create table item (id int primary key, v int);
  create function bump() returns trigger language plpgsql as $$ begin update a set n = n + 1 where id = 1; return new; end $$;
  create trigger bump after insert on item for each row execute function bump();
  create table nullu (id int primary key, u int unique);
  create table stamped (id int generated always as identity primary key, at timestamptz default now(), v int);
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
export const tables2 = [
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
const rows = `insert into a values (1, 0, 10), (2, 0, 20)`
const N = (x: string) => `select nextval('${x}')`
/**
 * Programs that somebody made to find what a reduction overlooks: rare syntax, hidden locks, keys that are equal in other
 * words. Each was missed once.
 */
export const hostile: Record<string, Program> = {
  c1_condition_on_locked_row: {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', N('s')]],
      [[N('s'), 'update a set n = 100 where id = 1 and n = 5']],
    ],
  },
  c1_forupdate: {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', N('s')]],
      [[N('s'), 'select n from a where id = 1 and n = 5 for update']],
    ],
  },
  c1_three: {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', 'insert into numbered (v) values (1)']],
      [['insert into numbered (v) values (2)', 'delete from a where id = 1 and n = 5']],
    ],
  },
  c2_epq_nextval: {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1']],
      [`update a set n = nextval('s') where id = 1 returning n`],
    ],
  },
  c2b_resumed_draws: {
    setup: rows,
    actors: [
      [N('s')],
      [['update a set n = 5 where id = 1', 'insert into a values (3, 0, 30)']],
      [`select n, nextval('s') from a order by id for update`],
    ],
  },
  c4_rollback_to_sure: {
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
  c5_nulls_not_distinct: { actors: [['insert into nn (id) values (1)'], ['insert into nn (id) values (2)']] },
  c5b_domain_default: { actors: [['insert into dom (id) values (1)'], ['insert into dom (id) values (2)']] },
  c6_generated_unique: {
    setup: `insert into gen (id, x) values (1, 'a'), (2, 'b')`,
    actors: [[`update gen set x = 'K' where id = 1`], [`update gen set x = 'k' where id = 2`]],
  },
  c10_lock_nowait_vs_reader: {
    setup: rows,
    actors: [
      [['select n from a where id = 1', N('s')]],
      [[N('s'), 'lock table a in access exclusive mode nowait']],
    ],
  },
  c11_lock_table_deadlock: {
    setup: `${rows}; insert into parent values (1, 0)`,
    actors: [
      [['update parent set n = 1 where id = 1', 'lock table a in access exclusive mode']],
      [['select n from a where id = 1', 'update parent set n = 2 where id = 1']],
    ],
  },
  c12_cte_shadow: {
    setup: rows,
    actors: [
      ['update a set n = 1 where id = 1'],
      ['with a as (select n from a where id = 1) select n from a'],
    ],
  },
  c13_min_created: {
    actors: [
      ['insert into job (id) values (1)', 'select id from job where at = (select min(at) from job)'],
      ['insert into job (id) values (2)'],
    ],
  },
  c15_shared_sequence_default: {
    actors: [['insert into shared1 (id) values (1)'], ['insert into shared1 (id) values (2)']],
  },
  c16_nextval_case: {
    actors: [[`insert into log values (nextval('S'))`], [`insert into log values (nextval('s') * 10)`]],
  },
  c17_trailing: { actors: [[`insert into trail select 1`], [`insert into trail select 2`]] },
  c18_update_default: {
    setup: 'insert into own (id, no) values (1, 0), (2, 0)',
    actors: [['update own set no = default where id = 1'], ['update own set no = default where id = 2']],
  },
  c19_rr_lock_table_no_snapshot: {
    setup: rows,
    isolation: 'repeatable read',
    actors: [
      [['lock table log in share mode', 'select n from a where id = 2', 'select n from a where id = 1']],
      [['lock table log in exclusive mode nowait'], 'update a set n = 1 where id = 1'],
    ],
  },
  c20_chain_sure: {
    setup: rows,
    actors: [
      [
        [
          'update a set n = n + 1 where id = 1',
          'commit and chain',
          N('s'),
          'update a set n = n + 1 where id = 1',
        ],
      ],
      [[N('s'), 'update a set n = n * 2 + 3 where id = 1 returning n']],
    ],
  },
  c21_unique_row_deadlock: {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 2', 'insert into a values (3, 0, 10)']],
      [['update a set n = 2 where id = 1', 'update a set n = 2 where id = 2']],
    ],
  },
  c22_whole_message: {
    setup: rows,
    actors: [
      ['lock table log in share mode; update a set n = 1 where id = 1'],
      ['select n from a where id = 1'],
    ],
  },
  c23_column_alias: {
    setup: 'insert into a values (1, 2, 10), (2, 0, 20)',
    actors: [['update a set n = 7 where id = 1'], ['select u from a as t(n, id, u) where id = 2']],
  },
  c24_union: {
    setup: rows,
    actors: [['update a set n = 1 where id = 1'], ['select n from a where id = 1 union all select 5']],
  },
  c24b_union_insert: {
    setup: rows,
    actors: [
      ['update a set n = 1 where id = 1'],
      ['insert into log (select n from a where id = 1 union select n from a where id = 2)'],
    ],
  },
  c27_agg_ties: {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select array_agg(v order by v > 5) from heap'],
    ],
  },
  c28_array_sublink: {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select array(select v from heap)'],
    ],
  },
  c29_insert_select_identity: {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'insert into numbered (v) select v from heap'],
    ],
  },
  c30_update_nextval: {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', `update heap set v = v * 10 + nextval('s')`],
    ],
  },
  c32_offset: {
    actors: [['insert into heap values (1)'], ['insert into heap values (2)', `select v from heap offset 1`]],
  },
  c33_subselect_for_update: {
    setup: rows,
    actors: [
      [
        [
          'select * from (select n from a where id = 1) x for update',
          'update a set n = n + 1 where id = 1',
          N('s'),
        ],
      ],
      [['select * from (select n from a where id = 1) x for update', N('s')]],
    ],
  },
  c34_key_share: {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 1', N('s')]],
      [[N('s'), 'select n from a where id = 1 for key share']],
    ],
  },
  c34b_key_share_plain: {
    setup: rows,
    actors: [[['update a set n = 1 where id = 1']], [['select n from a where id = 1 for key share']]],
  },
  c35_overriding: {
    actors: [
      ['insert into numbered (id, v) overriding user value values (1, 10)'],
      ['insert into numbered (id, v) overriding user value values (2, 20)'],
    ],
  },
  c36_any_comma: {
    setup: `insert into txt values ('a,b', 0)`,
    actors: [[`update txt set n = 1 where k = 'a,b'`], [`select n from txt where k = any ('{"a,b"}')`]],
  },
  c38_tablesample: {
    setup: rows,
    actors: [['update a set n = 1 where id = 1'], ['select sum(n) from a tablesample bernoulli (100)']],
  },
  c39_varchar_typmod: {
    setup: `insert into txt values ('ab', 0)`,
    actors: [[`update txt set n = 1 where k = 'ab'`], [`select n from txt where k = 'abc'::varchar(2)`]],
  },
  c40_varchar_blanks: { actors: [[`insert into vc values ('ab', 1)`], [`insert into vc values ('ab ', 2)`]] },
  c41_int_text: {
    setup: `insert into txt values ('1', 0)`,
    actors: [[`update txt set n = 1 where k = '1'`], [`select n from txt where k = '01'::int::text`]],
  },
  c42_sure_cte: {
    setup: rows,
    actors: [
      [
        [
          'with u as (update a set n = n + 1 where id = 1 and n = 5 returning n) select count(*) from u',
          N('s'),
          'update a set n = n * 2 + 1 where id = 1',
        ],
      ],
      [[N('s'), 'update a set n = n + 10 where id = 1']],
    ],
  },
  c43_sure_strength: {
    setup: 'insert into parent values (1, 0)',
    actors: [
      [
        [
          'insert into parent values (1, 1) on conflict (id) do update set n = parent.n + 1',
          N('t'),
          'select n from parent where id = 1 for update',
          N('s'),
        ],
      ],
      [[N('t'), 'insert into child values (1, 1)', N('s')]],
    ],
  },
  c44_operator: { actors: [['insert into log values (1)'], ['select 1 ### 2']] },
  c47_json_arrayagg: {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select json_arrayagg(v) from heap'],
    ],
  },
  d8_advisory_relock: {
    actors: [
      [
        [
          'select pg_advisory_lock(1)',
          'select pg_advisory_unlock(1)',
          N('s'),
          'select pg_advisory_lock(1)',
          N('t'),
          'select pg_advisory_unlock(1)',
        ],
      ],
      [[N('s'), 'select pg_advisory_xact_lock(1)', N('t')]],
    ],
  },
  d9b_savepoint_advisory: {
    actors: [
      [
        [
          'savepoint x',
          'select pg_advisory_xact_lock(1)',
          'rollback to x',
          N('s'),
          'select pg_advisory_xact_lock(1)',
          N('t'),
        ],
      ],
      [[N('s'), 'select pg_advisory_xact_lock(1)', N('t')]],
    ],
  },
  d20b_chain_rr: {
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
  d26_nulls_order: {
    actors: [
      ['insert into nullu values (1)'],
      ['insert into nullu values (2)', 'select id, count(*) over () from nullu order by u limit 1'],
    ],
  },
  d31_update_from_many: {
    setup: rows,
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        `update a set n = h.v * 10 + (select count(*) from heap) from heap h where a.id = 1`,
      ],
    ],
  },
  d46_any_value: {
    actors: [
      ['insert into heap values (1)'],
      ['insert into heap values (2)', 'select any_value(v), count(*) from heap'],
    ],
  },
  d48_xmax: {
    setup: rows,
    actors: [['select xmax <> 0 from a where id = 1'], ['select n from a where id = 1 for update']],
  },
  d52_index_collation: { actors: [[`insert into ci values (1, 'A')`], [`insert into ci values (2, 'a')`]] },
  d53_domain_check: { actors: [['insert into withdom values (1, 1)'], ['insert into log values (1)']] },
  d54_comment_level: {
    setup: rows,
    actors: [
      [
        [
          'set transaction isolation level repeatable /* */ read',
          'select n from a where id = 2',
          N('s'),
          'select n from a where id = 1',
        ],
      ],
      [['update a set n = 1 where id = 1'], N('s')],
    ],
  },
  d80_sure_upsert_other_key: {
    setup: rows,
    actors: [
      [
        [
          'insert into a values (5, 1, 10) on conflict (u) do update set n = a.n + 1',
          N('s'),
          'insert into a values (5, 1, 51)',
        ],
      ],
      [[N('s'), 'insert into a values (5, 2, 52)']],
    ],
  },
  d81_multirow_draws: {
    actors: [
      [`select nextval('own_no_seq')`],
      [['insert into own (id, no) values (1, 0)', 'rollback']],
      [`insert into own (id) values (1), (2)`],
    ],
  },
  d99_first_wins: {
    actors: [
      ['insert into heap values (1)'],
      [
        'insert into heap values (2)',
        'insert into first select 1, v * 10 + count(*) over () from heap on conflict do nothing',
      ],
    ],
  },
  d101_sure_savepoint_error: {
    setup: rows,
    actors: [
      [
        [
          'savepoint x',
          'update a set n = n + 1 where id = 1',
          'rollback to x',
          N('s'),
          'update a set n = n + 1 where id = 1',
        ],
      ],
      [[N('s'), 'update a set n = n * 2 + 3 where id = 1']],
    ],
  },
  d102_update_same_key_value: {
    setup: rows,
    actors: [
      [['update a set u = 10 where id = 1', N('s'), 'select n from a where id = 1 for update', N('t')]],
      [[N('s'), 'select n from a where id = 1 for key share', N('t')]],
    ],
  },
  e9_try3: {
    actors: [
      [['select pg_try_advisory_xact_lock(1)', N('s'), 'select pg_advisory_xact_lock(1)', N('t')]],
      [['select pg_advisory_xact_lock(1)']],
      [[N('s'), 'select pg_advisory_xact_lock(1)', N('t')]],
    ],
  },
  e9b_try3: {
    actors: [
      [[N('s'), 'select pg_advisory_xact_lock(1)', N('t')]],
      [['select pg_try_advisory_xact_lock(1)', N('s'), 'select pg_advisory_xact_lock(1)', N('t')]],
      [['select pg_advisory_xact_lock(1)']],
    ],
  },
  e21c_do_nothing: {
    setup: rows,
    actors: [
      [['update a set n = 1 where id = 2', 'insert into a values (3, 0, 10) on conflict do nothing']],
      [['update a set n = 2 where id = 1', 'update a set n = 2 where id = 2']],
    ],
  },
  e1_real_claim: {
    setup: rows,
    actors: [
      [['update a set n = 5 where id = 1', 'insert into numbered (v) values (1)']],
      [['insert into numbered (v) values (2)', 'update a set n = 6 where id = 1 and n = 5 returning n']],
    ],
  },
  e_count_for_update: {
    setup: `insert into a values (2, 0, 20)`,
    actors: [
      [
        [
          'select count(*) from (select id from a where id = 1 for update) x',
          N('s'),
          'insert into a values (1, 1, 11)',
        ],
      ],
      [[N('s'), 'insert into a values (1, 2, 12)']],
    ],
  },
  e_composite_fn: { actors: [['insert into log values (1)'], ['select 1 ### 2 limit 1']] },
  g1b_set_schema: {
    actors: [
      [[`set local schema 'zzo'`, 'insert into dup values (1, 0, 10)']],
      [[`set local schema 'zzo'`, 'insert into dup values (2, 0, 10)']],
    ],
  },
  g32_hidden_session_lock: {
    actors: [
      ['select take()', N('s'), 'select pg_advisory_unlock(77)'],
      [N('s'), 'select pg_try_advisory_xact_lock(77)'],
    ],
  },
  g35_hidden_lock_freed_by_error: {
    setup: rows,
    actors: [
      [['insert into item values (1, 1)', N('s'), 'insert into a values (2, 0, 99)']],
      [[N('s'), 'select n from a where id = 1 for update nowait']],
    ],
  },
  g35b_hidden_lock_rollback_to: {
    setup: rows,
    actors: [
      [['savepoint x', 'insert into item values (1, 1)', N('s'), 'rollback to x']],
      [[N('s'), 'select n from a where id = 1 for update nowait']],
    ],
  },
  g36_hidden_deadlock: {
    setup: rows,
    actors: [
      [['insert into item values (1, 1)', 'update a set n = 5 where id = 2']],
      [['update a set n = 7 where id = 2', 'update a set n = 8 where id = 1']],
    ],
  },
  h15_sure_upsert_other_unique: {
    setup: rows,
    actors: [
      [
        [
          'insert into a values (1, 5, 77) on conflict (id) do update set n = a.n + 1',
          N('s'),
          'insert into a values (8, 1, 77)',
        ],
      ],
      [[N('s'), 'insert into a values (9, 2, 77)']],
    ],
  },
  h27_lock_table_rollback_to: {
    actors: [
      [['savepoint x', 'lock table log', N('s'), 'rollback to x']],
      [[N('s'), 'lock table log in access share mode nowait']],
    ],
  },
}
