import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { createRole, directUrl, dropSchema, freshName } from '../../../../test/database.js'
import { ExplorationError } from '../../../errors.js'
import { Reset } from './reset.js'

let schema: string
let control: pg.Client
let actor: pg.Client

beforeAll(async () => {
  control = new pg.Client({ connectionString: directUrl })
  await control.connect()
})
afterAll(() => control.end())

beforeEach(async () => {
  schema = freshName('reset')
  actor = new pg.Client({ connectionString: directUrl })
  await actor.connect()
  await actor.query(`create schema ${schema}; set search_path = ${schema}`)
})
afterEach(async () => {
  await actor.end()
  await dropSchema(schema)
})

const pidOf = async (client: pg.Client) => {
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid')
  return rows[0]?.pid ?? 0
}
/** Runs as an actor would: noted just before its end. */
const noted = async (reset: Reset, sql: string, end = 'commit') => {
  await actor.query(`begin; ${sql}`)
  await reset.learnWrites(await pidOf(actor))
  await actor.query(end)
}
const numbers = async (sql: string): Promise<number[]> => {
  const { rows } = await actor.query<number[]>({ text: sql, rowMode: 'array' })
  return rows.flat().map(Number)
}
const rowsOf = (table: string) => numbers(`select count(*) from ${table}`)
const q = (table: string) => `${schema}.${table}`

/** Counts what the control connection is sent. */
const watched = () => {
  const texts: string[] = []
  const values: unknown[] = []
  const query: typeof control.query = (...args: unknown[]) => {
    const [first] = args
    values.push(Reflect.get(Object(first), 'values'))
    texts.push(typeof first === 'string' ? first : `${Reflect.get(Object(first), 'text')}`)
    return Reflect.apply(control.query, control, args)
  }
  return { texts, values, control: { query } }
}

describe('learnWrites', () => {
  it('finds what was written, and not what was read, locked or referenced', async () => {
    await actor.query(`
      create table a (id int primary key); create table b (id int references a); create unlogged table c (id int);
      create table "D d" (id int); create table read (id int); create table locked (id int); create table held (id int);
      create table indexed (id int primary key); create table gone (id int);
      insert into a values (1), (2); insert into locked values (1); insert into gone values (1)`)
    await actor.query('create temp table mine (id int)')
    const reset = await Reset.open(control)
    expect(reset.tables).toEqual([])
    await noted(reset, 'insert into b values (1)')
    expect(reset.tables).toEqual([q('b')]) // a was only referenced
    await noted(
      reset,
      `create temp table t (id int); insert into t values (1); insert into mine values (1); insert into c values (1); update "D d" set id = 1;
       select * from read; select * from locked for update; lock table held in exclusive mode; comment on table read is 'x';
       create index on indexed (id); create table young (id int references indexed); delete from gone`,
    )
    expect(reset.tables).toEqual([q('"D d"'), q('b'), q('c'), q('gone')]) // young is not committed
    await noted(reset, 'truncate held')
    expect(reset.tables).toContain(q('held'))
  })

  it('finds a table that was made in the same transaction once that has ended', async () => {
    const reset = await Reset.open(control)
    await noted(reset, 'create table young (id serial); insert into young default values')
    await reset.protectRows()
    expect(reset.tables).toEqual([q('young')])
    await reset.run()
    expect(await rowsOf('young')).toEqual([0])
    expect(await numbers('insert into young default values returning id')).toEqual([1])
  })

  it('forgets tables of a transaction that was rolled back', async () => {
    const watch = watched()
    const reset = await Reset.open(watch.control)
    await noted(reset, 'create table never (id int)', 'rollback')
    await reset.run()
    expect(reset.tables).toEqual([])
    await reset.learnWrites(0)
    expect(watch.values.at(-1)).toEqual([0, []]) // else it would grow with every schedule
  })
})

describe('run', () => {
  it('sets each sequence back to its position', async () => {
    await actor.query(`
      create sequence fed start 50;
      create table t (a serial, b int generated always as identity (start 10), c int default nextval('fed'));
      create sequence called; create sequence ahead; create sequence idle; create sequence altered;
      select nextval('called'), nextval('called'), setval('ahead', 42, false), nextval('idle')`)
    const reset = await Reset.open(control)
    await noted(reset, `insert into t default values; insert into t default values`)
    await noted(reset, `select nextval('called'), nextval('ahead'); create sequence young start 7`)
    await noted(reset, `alter sequence altered restart with 99; select nextval('young')`)
    await actor.query(`select nextval('idle')`) // by someone else
    for (let round = 0; round < 2; round++) {
      await reset.run()
      expect(await rowsOf('t')).toEqual([0])
      await noted(reset, 'insert into t default values')
      expect(await numbers('select a, b, c from t')).toEqual([1, 10, 50])
      expect(await numbers(`select nextval('called'), nextval('ahead'), nextval('young')`)).toEqual([
        3, 42, 7,
      ])
      expect(await numbers(`select nextval('altered')`)).toEqual([1])
    }
    expect(await numbers(`select nextval('idle')`)).toEqual([3])
  })

  it('sets a sequence back that was used in a transaction rolled back', async () => {
    await actor.query('create table t (id serial)')
    const reset = await Reset.open(control)
    await noted(reset, 'savepoint a; insert into t default values; rollback to a', 'rollback')
    await reset.run()
    expect(await numbers('insert into t default values returning id')).toEqual([1])
  })

  it('sets the sequences of a written table back also if their use was not seen', async () => {
    await actor.query(
      `create sequence fed start 50; create table t (a int generated by default as identity, c int default nextval('fed'))`,
    )
    const reset = await Reset.open(control)
    await noted(reset, 'insert into t values (1, 1)')
    await actor.query('begin; insert into t default values; rollback')
    await reset.run()
    expect(await numbers('insert into t default values returning a, c')).toEqual([1, 50])
  })

  const tangled = `
    create table parent (id int primary key, favorite int);
    create table child (id int primary key, parent int references parent on delete restrict);
    create table self (id int primary key, above int references self);
    create table log (line text);
    alter table parent add foreign key (favorite) references child;
    create function log() returns trigger language plpgsql as $$
      begin insert into log values (tg_op); return null; end $$;`
  const fill = `
    insert into log values ('x'); insert into self values (1, null), (2, 1), (3, 2);
    insert into parent values (1, null); insert into child values (1, 1); update parent set favorite = 1`

  it('minds neither foreign keys nor triggers', async () => {
    await actor.query(`${tangled} create trigger t after delete on child for each row execute function log()`)
    const reset = await Reset.open(control)
    await noted(reset, fill)
    await reset.run()
    for (const table of ['parent', 'child', 'self', 'log']) expect(await rowsOf(table), table).toEqual([0])
    const { rows } = await control.query('show session_replication_role')
    expect(rows).toEqual([{ session_replication_role: 'origin' }])
  })

  it('does the same as a user who may not switch triggers off', async () => {
    const role = freshName('plain')
    const plain = new pg.Client({ connectionString: await createRole(role) })
    try {
      await actor.query(`grant all on schema ${schema} to ${role}; set role ${role}`)
      await actor.query(
        `${tangled} alter function log() set search_path = ${schema};
         create trigger t after delete on child for each row execute function log()`,
      )
      await plain.connect()
      const reset = await Reset.open(plain)
      await noted(reset, fill)
      await reset.run()
      for (const table of ['parent', 'child', 'self', 'log']) expect(await rowsOf(table), table).toEqual([0])
    } finally {
      await plain.end()
      await actor.query(`reset role; drop owned by ${role} cascade; drop role ${role}`)
    }
  })

  it('empties partitions, and no table that merely inherits', async () => {
    await actor.query(`
      create table p (id int) partition by range (id);
      create table p1 partition of p for values from (0) to (10);
      create table p2 partition of p for values from (10) to (20);
      create table base (id int); create table heir () inherits (base); insert into heir values (1)`)
    const reset = await Reset.open(control)
    await noted(reset, 'insert into p values (1), (11); insert into base values (2)')
    expect(reset.tables).toEqual([q('base'), q('p'), q('p1'), q('p2')])
    await reset.run()
    expect(await rowsOf('p')).toEqual([0])
    expect(await numbers('select id from base')).toEqual([1])
  })

  it('survives tables that were dropped, made anew or renamed', async () => {
    await actor.query('create table t (id serial); create table lost (id serial); create table old (id int)')
    const reset = await Reset.open(control)
    await noted(reset, 'insert into t values (1); insert into lost values (1); insert into old values (1)')
    await actor.query('drop table lost') // behind its back
    await reset.run()
    expect(reset.tables).toEqual([q('old'), q('t')])
    for (let round = 0; round < 2; round++) {
      await noted(reset, 'drop table t; create table t (id serial, n int); insert into t values (5)')
      await reset.run()
      expect(await rowsOf('t')).toEqual([0])
      expect(reset.tables).toEqual([q('old'), q('t')])
    }
    await noted(reset, 'alter table old rename to new')
    await actor.query('create table old (id int); insert into old values (1); insert into new values (1)')
    await reset.run()
    expect(reset.tables).toEqual([q('new'), q('t')])
    expect(await numbers('select (select count(*) from old), (select count(*) from new)')).toEqual([1, 0])
  })

  it('is one round trip, and sometimes a vacuum besides', async () => {
    await actor.query('create table t (id serial); create table p (id int) partition by range (id)')
    const watch = watched()
    const reset = await Reset.open(watch.control)
    await reset.run()
    expect(watch.texts).toHaveLength(1) // there is nothing to do
    await noted(reset, 'insert into t default values; delete from p')
    watch.texts.length = 0
    for (let run = 1; run < 255; run++) await reset.run()
    expect(watch.texts).toHaveLength(254)
    expect(new Set(watch.texts).size).toBe(1)
    watch.texts.length = 0
    await reset.run()
    expect(watch.texts).toHaveLength(2)
    expect(watch.texts[1]).toBe(`vacuum (skip_locked) ${q('t')}`)
  })
})

describe('protectRows', () => {
  beforeEach(() =>
    actor.query('create table t (id int); create table u (id int); insert into t values (1), (2)'),
  )

  it('refuses rows that setup has left, and deletes nothing', async () => {
    const reset = await Reset.open(control)
    await noted(reset, 'insert into t values (3); insert into u values (1)')
    const error = await reset.protectRows().catch((error) => error)
    expect(error).toBeInstanceOf(ExplorationError)
    expect(error.message).toContain(`${q('t')} (2 rows now)`)
    expect(error.message).not.toContain(q('u'))
    expect(error.message).toMatch(/`setup`.*delete them.*`reset`/)
    await expect(reset.run()).rejects.toThrow(ExplorationError)
    expect(await rowsOf('t')).toEqual([3])
  })

  it('knows old rows also when they are frozen', async () => {
    await actor.query('vacuum (freeze) t')
    const reset = await Reset.open(control)
    await noted(reset, 'insert into t values (3)')
    await expect(reset.protectRows()).rejects.toThrow('(2 rows now)')
  })

  it.each(['delete from t', 'truncate t'])('lets setup put its own in their place: %s', async (sql) => {
    const reset = await Reset.open(control)
    await noted(reset, `${sql}; savepoint a; insert into t values (3); release a`)
    await reset.protectRows()
    await noted(reset, 'update t set id = 4')
    await reset.protectRows()
    await reset.run()
    expect(await rowsOf('t')).toEqual([0])
  })

  it('does not wait for a table that another session has locked, and counts it as one with rows', async () => {
    await actor.query('begin; lock table u')
    const reset = await Reset.open(control)
    await actor.query('commit')
    await reset.protectRows()
    await noted(reset, 'insert into u values (1)')
    await expect(reset.protectRows()).rejects.toThrow(`${q('u')} (1 row now).`)
  })

  it('refuses rows that an actor has changed, which look young', async () => {
    const reset = await Reset.open(control)
    await noted(reset, 'insert into u values (1)')
    await reset.protectRows()
    await noted(reset, 'update t set id = 3; update u set id = 3')
    await expect(reset.protectRows()).rejects.toThrow(`${q('t')} (2 rows now).`)
  })

  it('refuses rows that an actor has deleted, since the next schedule would begin without them', async () => {
    const reset = await Reset.open(control)
    await reset.protectRows()
    await noted(reset, 'delete from t')
    await expect(reset.protectRows()).rejects.toThrow(`${q('t')} (0 rows now).`)
  })

  it('is not needed for a table that only a later schedule writes to', async () => {
    const reset = await Reset.open(control)
    await noted(reset, 'insert into u values (1)')
    await reset.protectRows()
    await reset.protectRows()
    await reset.run()
    await noted(reset, 'insert into t values (3)')
    await expect(reset.run()).rejects.toThrow(`${q('t')} (3 rows now).`)
    expect(await rowsOf('t')).toEqual([3])
  })
})
