import pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { directUrl, dropSchema, freshName } from '../../../../test/database.js'
import { loadParser, parseStatements, type Statement } from './parse-statements.js'
import { SchemaCatalog } from './schema-catalog.js'

const app = freshName('catalog')
const other = freshName('other')
/** Not in the search_path, and so not to be mixed up with what another run of this file makes. */
const far = freshName('far')
const control = new pg.Client({ connectionString: directUrl })

beforeAll(async () => {
  await loadParser()
  await control.connect()
  await control.query(`
    create schema ${app};
    create schema ${other};
    create table ${app}.stock (sku text primary key, left_over int, changed timestamptz);
    create table ${app}.orders (id int, sku text references ${app}.stock);
    create function ${app}.double(n int) returns int language sql immutable as 'select n * 2';
    create function ${app}.double(n text) returns text language sql volatile as 'select n || n';
    create function ${app}.triple(n int) returns int language sql stable as 'select n * 3';
    create function ${app}.loud() returns int language sql volatile as 'select 1';
    create function ${app}.${far}() returns int language sql stable as 'select 1';
    create table ${app}.${far} (n int);
    create function ${app}.quiet() returns int language sql stable as 'select ${app}.loud()';
    create function ${app}.holds() returns void language sql stable as 'select pg_advisory_xact_lock(1)';
    create function ${app}.two() returns int language sql volatile as $$ select 1; select ';' is null; select 2 $$;
    create function ${app}.plain() returns int language sql volatile
      begin atomic; insert into ${app}.orders values (1); select 1; end;
    create function ${app}.short() returns int language sql volatile return 1;
    create function ${app}.take(sku text) returns void language plpgsql as $$
      begin perform 1; perform Move_on(1); end $$;
    create function ${app}.move_on(n int) returns int language plpgsql as $$
      begin perform take(''); return 1; end $$;
    create function ${other}.move_on(n int) returns int language plpgsql as $$ begin perform 1; return 1; end $$;
    create function ${app}.yielding() returns void language plpgsql as $$
      begin perform 1; perform dibs_point('a'); perform 2; end $$;
    create procedure ${app}.work_off() language plpgsql as $$ begin perform ${other}.far(); end $$;
    create function ${other}.far() returns void language plpgsql as $$ begin delete from nothing; end $$;
    create function ${app}.stamp() returns trigger language plpgsql as $$
      begin new.changed = clock_timestamp(); return new; end $$;
    create function ${app}.audit() returns trigger language plpgsql as $$
      begin insert into ${app}.log values (1); return new; end $$;
    create function ${app}.unused() returns trigger language plpgsql as $$
      begin insert into ${app}.log values (1); return new; end $$;
    create trigger a before update on ${app}.stock for each row execute function ${app}.stamp();
    create trigger b after update on ${app}.stock for each row execute function ${app}.audit();
    create trigger c after update on ${app}.stock for each row execute function ${app}.unused();
    alter table ${app}.stock disable trigger c;
    create trigger d after insert on ${app}.${far} for each row execute function ${app}.audit();
  `)
})
afterAll(async () => {
  await control.end()
  await dropSchema(app)
  await dropSchema(other)
})

const one = (text: string): Statement => {
  const [statement] = parseStatements(text)
  if (!statement?.isParsed) throw new Error(`This does not parse: ${text}`)
  return statement
}
const learned = async (text: string) => {
  const catalog = new SchemaCatalog(control)
  const statement = one(text)
  await catalog.learn(statement)
  return { mayWrite: catalog.mayWrite(statement), atomic: catalog.atomicFunctions }
}

it.each([
  ['no function', 'select 1', false],
  ['immutable and stable ones', 'select lower(now()::text), count(*) from t', false],
  ['SQL syntax', "select position('a' in 'b'), extract(year from now())", false],
  [
    'volatile ones that do no harm',
    "select random(), clock_timestamp(), set_config('a.b', 'c', true)",
    false,
  ],
  ['an advisory lock', 'select pg_advisory_xact_lock(1)', true],
  ['a sequence', "select nextval('s')", true],
  ['a notification', "select pg_notify('a', 'b')", true],
  ['one of several', 'select lower($1), txid_current(), setval($2, 1)', true],
  ['an unknown one', 'select no_such_function()', true],
  ['an unknown schema', 'select no_such_schema.lower($1)', true],
  ['an overload that is volatile', `select ${app}.double(1)`, true],
  ['a stable one of ours', `select ${app}.triple(1)`, false],
  ['a stable one outside of the search_path', `select ${far}()`, false],
  ['a stable one that calls a volatile one', `select ${app}.quiet()`, true],
  ['a stable one that takes an advisory lock', `select ${app}.holds()`, true],
])('%s: may it write?', async (_, text, expected) => {
  expect((await learned(text)).mayWrite).toBe(expected)
})

it.each<[string, string, string[]]>([
  ['built-in functions', "select lower('a'), random()", []],
  ['SQL of one statement', `select ${app}.double(1), ${app}.short()`, []],
  ['SQL of several', `select ${app}.two()`, [`${app}.two()`]],
  ['SQL of several, parsed by the server', `select ${app}.plain()`, [`${app}.plain()`]],
  [
    'PL/pgSQL, and what it calls',
    `select ${app}.take('x')`,
    [`${app}.move_on(integer)`, `${app}.take(text)`],
  ],
  ['a yield point', `select ${app}.yielding()`, []],
  [
    'a procedure that calls into another schema',
    `call ${app}.work_off()`,
    [`${app}.work_off()`, `${other}.far()`],
  ],
  ['triggers', `update ${app}.stock set left_over = 0`, [`${app}.audit()`]],
  ['triggers of a table outside of the search_path', `insert into ${far} values (1)`, [`${app}.audit()`]],
  ['no triggers for a read', `select * from ${app}.stock`, []],
  ['no triggers of foreign keys', `delete from ${app}.orders`, []],
])('%s: what is atomic?', async (_, text, expected) => {
  expect((await learned(text)).atomic).toEqual(expected)
})

it('counts a function as writing until it is looked up', () => {
  expect(new SchemaCatalog(control).mayWrite(one('select lower($1)'))).toBe(true)
})

it('looks names up once, and again after a change of the schema', async () => {
  let queries = 0
  const query: typeof control.query = (...args: unknown[]) => {
    queries++
    return Reflect.apply(control.query, control, args)
  }
  const catalog = new SchemaCatalog({ query })
  const name = `${app}.changing`
  const statement = one(`select ${name}(), lower($1)`)
  await control.query(
    `create function ${name}() returns int language plpgsql as 'begin perform 1; return 1; end'`,
  )
  await catalog.learn(one('select 1'))
  expect(queries).toBe(0)
  await catalog.learn(statement)
  await catalog.learn(statement)
  await catalog.learn(one('select lower($1)'))
  expect(queries).toBe(3) // which operators are the user's, which functions are built in, and what the others do
  expect(catalog.mayWrite(statement)).toBe(true)
  expect(catalog.atomicFunctions).toEqual([`${name}()`])
  await control.query(`create or replace function ${name}() returns int language sql stable as 'select 1'`)
  catalog.forget()
  expect(catalog.atomicFunctions).toEqual([])
  await catalog.learn(statement)
  expect(queries).toBe(6)
  expect(catalog.mayWrite(statement)).toBe(false)
  expect(catalog.atomicFunctions).toEqual([])
  await catalog.learn(one(`update ${app}.stock set left_over = 1`))
  await catalog.learn(one(`delete from ${app}.stock`))
  expect(queries).toBe(10) // what the table is like; whether anything is hidden anywhere, and then what: views, triggers
  await catalog.learn(one(`select * from ${app}.stock`))
  expect(queries).toBe(10)
})
