import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { loadParser, parseStatements } from '../statements/parse-statements.js'
import { SchemaCatalog } from '../statements/schema-catalog.js'
import type { Footprint, Lock, Resource } from './footprint.js'
import { statementFootprint } from './statement-footprint.js'

const { url } = exploredSchema(`
  create table a (id int primary key, n int not null default 0, email text unique);
  create table pair (x int, y text, n int, primary key (x, y));
  create table loose (v int);
  create table big (id bigint primary key, u uuid default gen_random_uuid() unique);
  create table word (id varchar primary key);
  create table short (id varchar(20) primary key);
  create table padded (id char(5) primary key);
  create table priced (id numeric primary key);
  create table parent (id int primary key, n int);
  create table child (id int primary key, parent int references parent);
  create table named (id int primary key, name text unique, n int);
  create table coded (id int primary key, code text references named (name));
  create table counted (id serial primary key, v int);
  create table audited (id int primary key, n int);
  create function note() returns trigger language plpgsql as 'begin return new; end';
  create trigger noted before update on audited for each row execute function note();
  create table ruled (id int primary key);
  create rule also as on insert to ruled do also delete from loose;
  create view seen as select id from a;
  create table parted (id int) partition by range (id);
  create table guarded (id int);
  alter table guarded enable row level security;
  create table late (id int primary key, p int references parent deferrable);
  create function five() returns int language sql immutable as 'select 5';
  create table checked (id int primary key, n int check (n < five()));
  create table booked (room int, during int4range, exclude using gist (during with &&));
`)

let control: pg.Client
let catalog: SchemaCatalog
beforeAll(async () => {
  await loadParser()
  control = new pg.Client({ connectionString: url })
  await control.connect()
  catalog = new SchemaCatalog(control)
})
afterAll(() => control.end())

const showResource = ({ table, index, keys }: Resource): string =>
  `${table}${index === '' ? '' : `.${index}`}[${keys ? [...keys].map((key) => (key.startsWith('[') ? JSON.parse(key).join() : key)).join(' ') : '*'}]`
const showLock = ({ resource, strength, isOfExistingRow }: Lock): string =>
  `${showResource(resource)} ${['key share', 'share', 'no key update', 'update'][strength]}${isOfExistingRow ? '' : ' claim'}`

/** The parts of a footprint that are not empty, as text. */
function show(footprint: Footprint): Record<string, unknown> {
  const {
    unboundedBecause,
    reads,
    locks,
    lockProbes,
    inserts,
    changes,
    sequences,
    orderSensitiveTables,
    unlockedReads,
    conditionalRows,
  } = footprint
  if (unboundedBecause !== undefined) return { everything: unboundedBecause }
  const all = {
    reads: reads.map(showResource),
    locks: locks.map(showLock),
    tries: lockProbes.map(showResource),
    adds: inserts.map(showResource),
    changes: changes.map(showResource),
    draws: [...sequences],
    disordered: [...orderSensitiveTables],
    conditional: conditionalRows.map(showResource),
    aside: unlockedReads.map(showResource),
  }
  return Object.fromEntries(Object.entries(all).filter(([, found]) => found.length > 0))
}

async function footprintOf(sql: string, values: (string | null)[] | undefined = []): Promise<Footprint> {
  const [statement] = parseStatements(sql)
  if (!statement) throw new Error('nothing to read')
  await catalog.learn(statement)
  return statementFootprint(statement, values, catalog)
}

describe('a statement reads, locks and changes', () => {
  it.each<[string, Record<string, unknown>, (string | null)[]?]>([
    ['select n from a where id = 1', { reads: ['a[1]'] }],
    ['select n from a where 1 = id and n > 2', { reads: ['a[1]'] }],
    ['select n from a x where x.id = $1', { reads: ['a[7]'] }, ['7']],
    ['select n from a where id = $1::int', { reads: ['a[7]'] }, ['007']],
    ['select n from a where id in (1, $1)', { reads: ['a[1 2]'] }, ['2']],
    ['select n from a where id = any ($1)', { reads: ['a[1 2]'] }, ['{1,2}']],
    ['select n from a where id = 1 or id = 2', { reads: ['a[*]'] }],
    ['select n from a where not id = 1', { reads: ['a[*]'] }],
    ['select n from a where id > 1', { reads: ['a[*]'] }],
    ['select n from a where id = 1.5', { reads: ['a[*]'] }],
    [`select n from a where id = '101'::bit(3)::int`, { reads: ['a[*]'] }],
    ['select n from a where id = n', { reads: ['a[*]'] }],
    ['select count(*) from a', { reads: ['a[*]'] }],
    [`select n from pair where x = 1 and y = 'p'`, { reads: ['pair[1,p]'] }],
    ['select n from pair where x = 1', { reads: ['pair[*]'] }],
    ['select from word where id = $1', { reads: ['word[ab]'] }, ['ab']],
    ['select from short where id = $1', { reads: ['short[ab]'] }, ['ab']],
    ['select from short where id = $1', { reads: ['short[*]'] }, ['a text that is longer']],
    ['select from word where id = $1', { reads: ['word[*]'] }, ['<2 bytes>']],
    [`select from padded where id = 'ab'`, { reads: ['padded[*]'] }],
    ['select from priced where id = 1', { reads: ['priced[*]'] }],
    ['select a.n from a join parent p on p.id = a.n where a.id = 1', { reads: ['a[1]', 'parent[*]'] }],
    ['select (select max(v) from loose) from a where id = 1', { reads: ['a[1]', 'loose[*]'] }],
    ['with loose as (select 1 as v) select v from loose', {}],
    ['select n from a where id = 1 for update', { locks: ['a[1] update'] }],
    ['select n from a where id = 1 for key share', { reads: ['a[1]'], locks: ['a[1] key share'] }],
    ['select n from a where id = 1 and n > 0 for update', { locks: ['a[1] update'], conditional: ['a[1]'] }],
    ['select n from a where n = 1 for share', { reads: ['a[*]'], locks: ['a[*] share'] }],
    ['select n from a where id = 1 for update nowait', { locks: ['a[1] update'], tries: ['a[1]'] }],
    [
      'select id from a where n = 0 order by id limit 1 for update skip locked',
      { reads: ['a[*]'], locks: ['a[*] update'], tries: ['a[*]'] },
    ],
    ['select id from a order by n limit 1', { reads: ['a[*]'], disordered: ['a'] }],
    ['select array_agg(n) from a', { reads: ['a[*]'], disordered: ['a'] }],
    ['select array_agg(n order by id) from a', { reads: ['a[*]'], disordered: ['a'] }],
    ['select distinct on (n) id from a', { reads: ['a[*]'], disordered: ['a'] }],
    [
      'update a set n = n + 1 where id = 1',
      { locks: ['a.a_email_key[*] key share claim', 'a[1] no key update'], changes: ['a[1]'] },
    ],
    [
      'update a set n = 1',
      {
        reads: ['a[*]'],
        locks: ['a.a_email_key[*] key share claim', 'a[*] no key update'],
        changes: ['a[*]'],
      },
    ],
    [
      `update a set email = 'x' where id = 1`,
      { locks: ['a.a_email_key[*] update claim', 'a[1] update'], changes: ['a[1]'] },
    ],
    [
      'update a set id = 2 where id = 1',
      {
        locks: ['a.a_email_key[*] key share claim', 'a[*] update claim', 'a[1] update'],
        adds: ['a[*]'],
        changes: ['a[*]'],
      },
    ],
    [
      'update a set n = (select max(v) from loose) where id = 1',
      {
        reads: ['loose[*]'],
        locks: ['a.a_email_key[*] key share claim', 'a[1] no key update'],
        changes: ['a[1]'],
        aside: ['loose[*]'],
      },
    ],
    [
      'update a set n = p.n from parent p where a.id = 1 and p.id = 2',
      {
        reads: ['parent[2]', 'a[1]'],
        locks: ['a.a_email_key[*] key share claim', 'a[1] no key update'],
        changes: ['a[1]'],
        aside: ['parent[2]'],
      },
    ],
    ['delete from named where id = 1', { everything: 'coded refers to named, of which rows are deleted' }],
    ['delete from pair where x = 1', { reads: ['pair[*]'], locks: ['pair[*] update'], changes: ['pair[*]'] }],
    [
      `insert into a values (1, 2, 'x')`,
      { locks: ['a.a_email_key[x] update claim', 'a[1] update claim'], adds: ['a[1]'] },
    ],
    ['insert into a (id) values (1), (2)', { locks: ['a[1 2] update claim'], adds: ['a[1 2]'] }],
    [
      'insert into a (id) select v from loose',
      { reads: ['loose[*]'], locks: ['a.a_email_key[*] update claim', 'a[*] update claim'], adds: ['a[*]'] },
    ],
    ['insert into loose values (1)', { adds: ['loose[*]'] }],
    ['insert into big (id) values (1)', { locks: ['big[1] update claim'], adds: ['big[1]'] }],
    [
      'insert into counted (v) values (1)',
      { locks: ['counted[*] update claim'], adds: ['counted[*]'], draws: ['counted_id_seq'] },
    ],
    [`select nextval('counted_id_seq')`, { draws: ['counted_id_seq'] }],
    [
      'insert into child values (1, 2)',
      { locks: ['child[1] update claim', 'parent[2] key share'], adds: ['child[1]'] },
    ],
    [
      'insert into child values (1, null)',
      { locks: ['child[1] update claim', 'parent[*] key share'], adds: ['child[1]'] },
    ],
    [
      `insert into coded values (1, 'x')`,
      { locks: ['coded[1] update claim', 'named[*] key share'], adds: ['coded[1]'] },
    ],
    [
      'update child set parent = 2 where id = 1',
      { locks: ['parent[*] key share', 'child[1] no key update'], changes: ['child[1]'] },
    ],
    [
      'insert into pair values (1, $1, 0) on conflict (x, y) do update set n = 1',
      {
        locks: ['pair[1,p] update claim', 'pair[1,p] update claim'],
        adds: ['pair[1,p]'],
        changes: ['pair[1,p]'],
      },
      ['p'],
    ],
    ['lock table a', { everything: 'LOCK TABLE' }],
    ['select pg_advisory_xact_lock(1, $1)', { locks: ['advisory locks.key[1,2] update claim'] }, ['2']],
    [
      'select pg_try_advisory_lock_shared(5)',
      { locks: ['advisory locks.key[5] share claim'], tries: ['advisory locks.key[5]'] },
    ],
    ['select pg_advisory_lock(hashtext($1))', { locks: ['advisory locks.key[*] update claim'] }, ['x']],
    ['commit', {}],
  ])('%s', async (sql, expected, values = []) => {
    expect(show(await footprintOf(sql, values))).toEqual(expected)
  })

  it('any row, where parameters are not known', async () => {
    expect(show(await footprintOf('select n from a where id = $1', undefined))).toEqual({ reads: ['a[*]'] })
    expect(show(await footprintOf('select n from a where id = $1', [null]))).toEqual({ reads: ['a[*]'] })
  })
})

describe('a statement counts as one that may do anything', () => {
  it.each([
    ['update audited set n = 1 where id = 1', 'audited has the trigger noted'],
    ['insert into ruled values (1)', 'ruled has the rule also'],
    ['select id from seen', 'seen is a view'],
    ['insert into parted values (1)', 'parted is made of several tables'],
    ['select id from guarded', 'guarded has row security policies'],
    ['insert into late values (1, 1)', 'late has a constraint that can be deferred to COMMIT'],
    ['update checked set n = 1 where id = 1', 'checked uses five for a default, a check or an index'],
    [`update named set name = 'x' where id = 1`, 'coded refers to named, whose key is changed'],
    ['select abs(five())', 'it calls five()'],
    ['select pg_notify($1, $2)', 'pg_notify() sees or does more than it says'],
    ['select txid_current()', 'txid_current() sees or does more than it says'],
    ['select nowhere()', 'nowhere() is not known'],
    ['select 1 from nowhere', 'nowhere is not known'],
    ['select count(*) from pg_stat_activity', 'pg_stat_activity is not known'],
    ['truncate loose', 'Truncate is not understood in detail'],
    ['merge into a using loose on id = v when matched then do nothing', 'Merge is not understood in detail'],
    [
      'with x as (merge into a using loose on id = v when matched then delete returning id) select * from x',
      'Merge is not understood in detail',
    ],
    ['execute something', 'Execute is not understood in detail'],
    ['selec 1', '"selec 1" is not understood'],
  ])('%s', async (sql, why) => {
    expect((await footprintOf(sql)).unboundedBecause).toBe(why)
  })

  it('reads of a table with a trigger are reads', async () => {
    expect(show(await footprintOf('select n from audited where id = 1'))).toEqual({ reads: ['audited[1]'] })
  })
})
