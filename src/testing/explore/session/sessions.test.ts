import assert from 'node:assert/strict'
import { finished } from 'node:stream/promises'
import pg, { type Pool, type PoolClient } from 'pg'
import postgres from 'postgres'
import { describe, expect, it } from 'vitest'
import { freshName } from '../../../../test/database.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { realTime } from '../../../../test/real-time.js'
import { Dibs } from '../../../dibs.js'
import { explore } from '../explore.js'
import type { ExploreHandle, ExploreOptions } from '../options.js'

const { url, schema, query } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create table parent (id int primary key);
  create table child (id int primary key, parent int references parent deferrable initially deferred);
  create table log (id int generated always as identity, what text);
  create function log_it() returns trigger language plpgsql as $$
    begin insert into log (what) values (tg_op); return new; end $$;
  create table part (k int) partition by list (k);
  create table part1 partition of part for values in (1);
  create table part2 partition of part for values in (2);
  create table stamp (name text, began timestamptz, read timestamptz);
  create table claimed (name text);
  create function claim() returns int language sql as $$
    insert into claimed select 'x' where not exists (select from claimed) returning 1 $$;
  create view claims as select claim() as got;
  create function ensure_made() returns void language plpgsql as $$ begin
    if to_regclass('made_by_function') is null then create table made_by_function (id int); end if; end $$;
  create procedure commit_twice() language plpgsql as $$
    begin insert into claimed values ('a'); commit; insert into claimed values ('b'); commit; end $$;
  create table seldom (k int);
  create table seldom_log (k int);
  create function log_seldom() returns trigger language plpgsql as $$
    begin
      if new.k > 1 then insert into seldom_log values (new.k); end if;
      return new;
    end $$;
  create trigger seldom_logged after insert on seldom for each row execute function log_seldom();
  create trigger logged after insert or update on counter for each row execute function log_it();
`)

const start = (db: Pool) => db.query('insert into counter values (1, 0)')

/** Runs one actor twice (the second is the explorer's own check) and returns what it saw. */
async function seen(
  act: (db: Pool) => Promise<unknown>,
  options: Partial<ExploreOptions> = {},
): Promise<unknown[]> {
  const values: unknown[] = []
  const idle = (db: Pool) => db.query('select 1')
  await explore({
    url,
    setup: start,
    actors: { alice: async (db) => void values.push(await act(db)), bob: idle },
    ...options,
  })
  return values
}

async function withClient<T>(db: Pool, fn: (client: PoolClient) => Promise<T>): Promise<T> {
  const client = await db.connect()
  try {
    return await fn(client)
  } finally {
    client.release()
  }
}

describe('what an actor leaves in its session is gone in the next schedule', () => {
  it.each([
    ['a setting', `set work_mem = '1MB'`, `select current_setting('work_mem') as it`, '1MB'],
    [
      'a session lock',
      'select pg_advisory_lock(9)',
      `select count(*)::int as it from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`,
      1,
    ],
    [
      'a temporary table',
      'create temp table t as select 1',
      `select to_regclass('pg_temp.t')::text as it`,
      'pg_temp.t',
    ],
  ])('%s', async (_, leave, look, left) => {
    const values = await seen((db) =>
      withClient(db, async (client) => {
        const before = (await client.query(look)).rows[0].it
        await client.query(leave)
        const after = (await client.query(look)).rows[0].it
        return [before === left, after === left || after === 't']
      }),
    )
    expect(values.length).toBeGreaterThan(1)
    expect(new Set(values.map(String))).toEqual(new Set(['false,true']))
  })

  it('but not the names of its prepared statements, which pg remembers', async () => {
    const values = await seen((db) =>
      withClient(db, async (client) => {
        const query = { name: 'one', text: 'select n from counter where id = $1', values: [1] }
        return (await client.query(query)).rows[0].n + (await client.query(query)).rows[0].n
      }),
    )
    expect(values.length).toBeGreaterThan(1)
    expect(new Set(values)).toEqual(new Set([0]))
  })
})

describe('an actor may', () => {
  it('use callbacks', async () => {
    const values = await seen(
      (db) =>
        new Promise((resolve, reject) => {
          void db.query('select n from counter', (error, first) => {
            if (error) return reject(error)
            db.connect((_, client, release) => {
              client?.query('select $1::int as n', [first.rows[0].n + 1], (failed, second) => {
                release()
                if (failed) reject(failed)
                else resolve(second.rows[0].n)
              })
            })
          })
        }),
    )
    expect(new Set(values)).toEqual(new Set([1]))
  })

  it('send several statements without waiting', async () => {
    const values = await seen((db) =>
      withClient(db, async (client) => {
        const answers = await Promise.all(
          ['select 1 as n', 'select 2 as n', 'select 3 as n'].map((sql) => client.query(sql)),
        )
        return answers.map(({ rows }) => rows[0].n).join()
      }),
    )
    expect(new Set(values)).toEqual(new Set(['1,2,3']))
  })

  it('take its time between statements', async () => {
    const values = await seen(async (db) => {
      await db.query('select 1')
      await new Promise((resolve) => setTimeout(resolve, 20))
      return (await db.query('select 2 as n')).rows[0].n
    })
    expect(new Set(values)).toEqual(new Set([2]))
  })

  it('meet an error at the COMMIT of a statement that went well', async () => {
    const report = await explore({
      url,
      actors: { alice: (db) => db.query('insert into child values (1, 1)') },
      throws: false,
    })
    expect(report.race?.failure.message).toMatch(
      /alice failed: insert or update on table "child" violates foreign key/,
    )
    expect(
      report.race?.steps.map(
        ({ effect }) => effect.kind === 'done' && (effect.result.error?.code ?? effect.result.tag),
      ),
    ).toEqual(['INSERT 0 1', '23503'])
  })

  it('go on in a session after an error outside a transaction, and inside one after a savepoint', async () => {
    const values = await seen((db) =>
      withClient(db, async (client) => {
        await client.query('select 1 / 0').catch(() => {})
        await client.query('begin')
        await client.query('savepoint a')
        await client.query('select 1 / 0').catch(() => {})
        await client.query('rollback to savepoint a')
        const { rows } = await client.query('select n from counter')
        await client.query('commit')
        return rows[0].n
      }),
    )
    expect(new Set(values)).toEqual(new Set([0]))
  })

  it('hear notifications', async () => {
    const heard: unknown[] = []
    await explore({
      url,
      actors: {
        alice: (db) =>
          withClient(db, async (client) => {
            const got = new Promise<unknown>((resolve) =>
              client.once('notification', ({ payload }) => resolve(payload)),
            )
            await client.query('listen spring')
            await client.query(`notify spring, 'is here'`)
            heard.push(await got)
          }),
      },
    })
    expect(heard).toEqual(['is here'])
  })

  it('write through triggers and foreign keys: all of it is undone', async () => {
    const report = await explore({
      url,
      setup: start,
      actors: {
        alice: async (db) => {
          await db.query('insert into parent values (1)')
          await db.query('insert into child values (1, 1)')
        },
        bob: (db) => db.query('update counter set n = n + 1'),
      },
      invariant: async (db) => {
        const { rows } = await db.query('select array_agg(id order by id) as ids from log')
        assert.deepEqual(rows[0].ids, [1, 2])
      },
    })
    expect(report.isExhaustive).toBe(true)
    expect(report.notes).toEqual([
      "log_it() runs as one step: it has no yield point (perform dibs_point('name')).",
    ])
    const pool = new pg.Pool({ connectionString: url })
    const { rows } = await pool.query(
      'select (select count(*) from log) + (select count(*) from child) as left',
    )
    await pool.end()
    expect(rows[0].left).toBe('0')
  })

  it('ask for a type of its own, rows as arrays, and binary', async () => {
    const values = await seen((db) =>
      withClient(db, async (client) => {
        const rows = await client.query({ text: 'select n, 2 from counter', rowMode: 'array' })
        const binary = await client.query({
          text: 'select $1::int as n',
          values: [7],
          binary: true,
        } as pg.QueryConfig)
        return [rows.rows[0], binary.rows[0].n].join()
      }),
    )
    expect(new Set(values)).toEqual(new Set(['0,2,7']))
  })

  it('write to a table by a function: that is undone too', async () => {
    const insert = (table: string, k: number) => (db: Pool) =>
      db.query(`insert into ${table} values ($1)`, [k])
    for (const [table, log] of [
      ['part', 'part'],
      ['seldom', 'seldom_log'],
    ] as const) {
      const report = await explore({
        url,
        actors: { alice: insert(table, 1), bob: insert(table, 2) },
        invariant: async (db) => {
          const { rows } = await db.query(`select count(*)::int as n from ${log}`)
          assert.equal(rows[0].n, table === log ? 2 : 1)
        },
      })
      expect(report.isExhaustive).toBe(true)
    }
  })

  it('end its pool', async () => {
    const values = await seen(async (db) => {
      const { rows } = await db.query('select n from counter')
      await db.end()
      return rows[0].n
    })
    expect(new Set(values)).toEqual(new Set([0]))
  })

  it('use several connections at once, in every schedule the same', async () => {
    const both = (db: Pool) =>
      Promise.all([db.query('update counter set n = n + 1'), db.query('insert into parent values (1)')])
    const report = await explore({
      url,
      setup: start,
      actors: { alice: both, bob: (db) => db.query('select 1') },
    })
    expect(report.isExhaustive).toBe(true)
  })

  it('abandon work that it does not wait for', async () => {
    const later = async (db: Pool) => {
      await db.query('select 1')
      await db.query('select 2')
    }
    const report = await explore({
      url,
      actors: {
        alice: async (db) => {
          void later(db)
          await db.query('select 3')
        },
        bob: (db) => db.query('select 4'),
      },
    })
    expect(report.verdict).toBe('passed')
  })

  it('poll for a change by the other', async () => {
    const wait = async (db: Pool) => {
      for (;;) {
        const { rows } = await db.query('select n from counter')
        if (rows[0].n > 0) return
      }
    }
    const report = await explore({
      url,
      setup: start,
      actors: { alice: wait, bob: (db) => db.query('update counter set n = 1') },
    })
    expect(report).toMatchObject({ verdict: 'passed', isComplete: true, isExhaustive: false })
    expect(report.notes).toContainEqual(
      expect.stringContaining('alice repeats the same statements without effect'),
    )
  })

  it('do the same several times, also before any other actor', async () => {
    const orders = new Set<string>()
    await explore({
      url,
      actors: {
        alice: async (db) => {
          for (let i = 0; i < 4; i++) await db.query(`insert into claimed values ('a')`)
        },
        bob: (db) => db.query(`insert into claimed select count(*)::text from claimed`),
      },
      bound: { preemptions: 0 },
      invariant: async (db) => {
        const { rows } = await db.query(`select name from claimed where name <> 'a'`)
        orders.add(rows[0].name)
      },
    })
    expect([...orders].toSorted()).toEqual(['0', '4'])
  })

  it('lose the connection that waits: it keeps its label', async () => {
    const act = (db: Pool) => db.query('insert into parent values (1)')
    const report = await explore({
      url,
      actors: { alice: act, bob: act },
      schedule: ['alice', 'bob', 'alice'],
      throws: false,
    })
    expect(report.race?.steps.at(-1)?.resumed.map(({ unit }) => unit)).toEqual(['bob'])
  })

  it('be a transaction of Dibs', async () => {
    const pool = new pg.Pool({ connectionString: url })
    await using dibs = await Dibs.open({ pool, schema, listen: false })
    const add = (isolation: 'read committed' | 'serializable') => () =>
      dibs.transaction(
        async (tx) => {
          const { rows } = await tx.query<{ n: number }>('select n from counter')
          await tx.query('update counter set n = $1', [(rows[0]?.n ?? 0) + 1])
        },
        { isolation },
      )
    const run = (isolation: 'read committed' | 'serializable') =>
      explore({
        pool,
        setup: start,
        actors: { alice: add(isolation), bob: add(isolation) },
        invariant: async (db) => {
          const { rows } = await db.query('select n from counter')
          assert.equal(rows[0].n, 2)
        },
        throws: false,
      })
    expect((await run('read committed')).verdict).toBe('race')
    expect(await run('serializable')).toMatchObject({ verdict: 'passed', isExhaustive: true })
    await dibs.close()
    await pool.end()
  })

  it('copy in and out, and read with a cursor', async () => {
    const values = await seen(async (db) => {
      const sql = postgres((db as ExploreHandle).url, { max: 1, fetch_types: false })
      try {
        const into = await sql`copy counter (id, n) from stdin`.writable()
        into.end('2\t20\n3\t30\n')
        await finished(into)
        const out = await sql`copy (select n from counter order by id) to stdout`.readable()
        const copied = (await out.toArray()).map(String).join('')
        const read: number[] = []
        await sql`select n from counter order by id`.cursor(1, ([row]) => void read.push(row?.n))
        return `${copied.replaceAll('\n', ' ')}| ${read.join(' ')}`
      } finally {
        await sql.end()
      }
    })
    expect(new Set(values)).toEqual(new Set(['0 20 30 | 0 20 30']))
  })

  it('take on another role', async () => {
    const role = freshName('part')
    await query(
      `create role ${role}; grant usage on schema ${schema} to ${role}; grant all on all tables in schema ${schema} to ${role}`,
    )
    const act = (db: Pool) =>
      withClient(db, async (client) => {
        await client.query('begin')
        await client.query(`set local role ${role}`)
        await client.query('update parent set id = id where id = 1')
        await client.query('update parent set id = id where id = 2')
        await client.query('commit')
      })
    const report = await explore({
      url,
      setup: (db) => db.query('insert into parent values (1), (2)'),
      actors: { alice: act, bob: act },
    })
    await query(`drop owned by ${role}; drop role ${role}`)
    expect(report.isExhaustive).toBe(true)
  })

  it('have a pool whose owner prepares each connection', async () => {
    const bare = new URL(url)
    bare.searchParams.delete('options')
    const pool = new pg.Pool({ connectionString: bare.href })
    pool.on('connect', (client) => void client.query(`set search_path = ${schema}`))
    const add = () => pool.query('update counter set n = n + 1')
    const report = await explore({
      pool,
      setup: () => start(pool),
      actors: { alice: add, bob: add },
      invariant: async () => assert.equal((await pool.query('select n from counter')).rows[0].n, 2),
    })
    await pool.end()
    expect(report).toMatchObject({ isExhaustive: true, schedules: 4 })
  })

  it.each([
    [[]],
    [['set local work_mem = 200']],
    [[`set local work_mem = '200kB' -- a comment`, 'savepoint a']],
  ])('begin a transaction that counts from its first step on, also with %j', async (settings) => {
    const stamp = (name: string) => (db: Pool) =>
      withClient(db, async (client) => {
        for (const sql of ['begin', ...settings]) await client.query(sql)
        await client.query('insert into stamp values ($1, now(), clock_timestamp())', [name])
        await client.query('commit')
      })
    const report = await explore({
      url,
      actors: { alice: stamp('alice'), bob: stamp('bob') },
      schedule: ['bob', 'bob', 'alice', 'alice'],
      invariant: async (db) => {
        const { rows } = await db.query(`
            select (select began from stamp where name = 'alice') > (select read from stamp where name = 'bob') as is_later`)
        return rows[0].is_later
      },
    })
    expect(report.verdict).toBe('passed')
  })

  it('copy in and go on in one message', async () => {
    const values = await seen((db) => copyInOneMessage((db as ExploreHandle).url))
    expect(new Set(values)).toEqual(new Set(['GCTDCZ']))
  })

  it.each([
    ['lock table counter', '25P01'],
    ['declare c cursor for select 1', '25P01'],
    [`insert into parent values (1); savepoint a; select 1`, '25P01'],
  ])('not be helped by the gate: %s', async (sql, code) => {
    const values = await seen((db) => db.query(sql).catch((error: { code: string }) => error.code))
    expect(new Set(values)).toEqual(new Set([code]))
  })
})

describe('what setup and the invariant leave', () => {
  const add = (db: Pool) => db.query('update counter set n = n + 1')

  it('open, is refused', async () => {
    const open = (db: Pool) => withClient(db, (client) => client.query('begin; select n from counter'))
    const run = (options: Partial<ExploreOptions>) =>
      explore({ url, actors: { alice: add, bob: add }, ...options })
    await expect(run({ setup: start, invariant: open })).rejects.toMatchObject({ reason: 'invariant' })
    await expect(run({ setup: open })).rejects.toMatchObject({ reason: 'setup' })
  })

  it('in their sessions, is gone in the next schedule', async () => {
    const report = await explore({
      url,
      setup: async (db) => {
        await start(db)
        await db.query('create temp table mine as select 1')
      },
      actors: { alice: add, bob: add },
      invariant: async (db) => {
        const client = await db.connect() // kept
        const { rows } = await client.query('select n from counter')
        await client.query('set search_path = pg_catalog')
        return rows[0].n === 2
      },
    })
    expect(report).toMatchObject({ verdict: 'passed', schedules: 4 })
  })

  it('by a procedure that commits, is refused unless there is a reset', async () => {
    const setup = (db: Pool) => db.query('call commit_twice()')
    await expect(explore({ url, setup, actors: { alice: add } })).rejects.toMatchObject({ reason: 'reset' })
    await query(`delete from claimed`)
    const string = (db: Pool) =>
      db.query(`begin; insert into claimed values ('a'); commit; insert into claimed values ('b')`)
    await expect(explore({ url, setup: string, actors: { alice: add } })).rejects.toMatchObject({
      reason: 'reset',
    })
    const reset = (db: Pool) => db.query('delete from claimed')
    const report = await explore({ url, setup: string, actors: { alice: add, bob: add }, reset })
    expect(report.isExhaustive).toBe(true)
  })

  it('half done, is undone', async () => {
    const setup = async (db: Pool) => {
      await start(db)
      throw new Error('no more')
    }
    await expect(explore({ url, setup, actors: { alice: add } })).rejects.toMatchObject({ reason: 'setup' })
    const left = await query(`select from counter`)
    expect(left.rowCount).toBe(0)
  })

  it('in another table each time, is undone too', async () => {
    let run = 0
    const report = await explore({
      url,
      setup: (db) => db.query('insert into part values ($1)', [1 + (run++ % 2)]),
      actors: {
        alice: (db) => db.query('select count(*) from part'),
        bob: (db) => db.query('select 1 from part'),
      },
      invariant: async (db) => (await db.query('select count(*)::int as n from part')).rows[0].n === 1,
    })
    expect(report.verdict).toBe('passed')
  })
})

describe('what an actor does too late', () => {
  it('is noted, and is no part of the next schedule', async () => {
    const late = async (db: Pool) => {
      await db.query('select 1')
      setTimeout(() => void db.query('update counter set n = 100'), 20)
    }
    const slow = async (db: Pool) => {
      await db.query('select 2')
      await new Promise((resolve) => setTimeout(resolve, 30))
    }
    const report = await explore({
      url,
      setup: start,
      actors: { alice: late, bob: slow },
      schedule: ['bob', 'alice'],
      invariant: () => true,
    })
    expect(report.verdict).toBe('passed')
    const twice = await explore({
      url,
      setup: start,
      actors: { alice: late, bob: (db) => db.query('select 2') },
      invariant: async () => {
        await new Promise((resolve) => setTimeout(resolve, 40))
      },
    })
    expect(twice.isExhaustive).toBe(false)
    expect(twice.notes).toContainEqual(
      expect.stringMatching(/alice did not wait for what it began, at .*sessions\.test\.ts/),
    )
  })

  it(
    'after a failed transaction that nobody rolled back, does not disturb the next schedule',
    realTime,
    async () => {
      const fail = (db: Pool) =>
        withClient(db, async (client) => {
          await client.query('begin')
          await client.query('select 1 / 0')
        })
      const startedAt = performance.now()
      const report = await explore({
        url,
        actors: { alice: fail, bob: fail },
        mayFail: () => true,
        throws: false,
      })
      expect(report.race?.failure.message).toContain('left its transaction open')
      expect(report.notes).not.toContainEqual(expect.stringContaining('went another way'))
      expect(performance.now() - startedAt).toBeLessThan(4_000)
    },
  )
})

describe('what runs as one step is noted', () => {
  const notesOf = async (act: (db: Pool) => unknown): Promise<readonly string[]> =>
    (
      await explore({
        url,
        setup: start,
        actors: { alice: act, bob: act },
        invariant: () => true,
        mayFail: () => true,
      })
    ).notes

  it('a DO block', async () => {
    expect(await notesOf((db) => db.query('do $$ begin perform 1; end $$'))).toContainEqual(
      expect.stringContaining('A DO block runs as one step'),
    )
  })

  it('statements that lock several rows', async () => {
    const both = (db: Pool) =>
      db.query('insert into parent select g from generate_series(1, 2) g on conflict do nothing')
    expect(await notesOf(both)).toContainEqual(
      expect.stringContaining('lock more than one row in one statement'),
    )
  })

  it('a lock_timeout of its own, which may end what would be stuck', async () => {
    const report = await explore({
      url,
      setup: start,
      actors: {
        alice: (db) =>
          withClient(db, async (client) => {
            await client.query('begin')
            await client.query('update counter set n = 1')
            await db
              .query(`begin; set local lock_timeout = '50ms'; update counter set n = 2; commit`)
              .catch(() => {})
            await client.query('commit')
          }),
      },
    })
    expect(report.verdict).toBe('passed')
  })

  it('a read of a view that writes is two steps', async () => {
    const report = await explore({
      url,
      actors: {
        alice: (db) => db.query('select * from claims'),
        bob: (db) => db.query('select * from claims'),
      },
      invariant: async (db) => (await db.query('select count(*)::int as n from claimed')).rows[0].n === 1,
      throws: false,
    })
    expect(report.verdict).toBe('race')
  })

  it('a DO block that writes to another table each time: that is undone', async () => {
    const branch = `do $$ begin
      if (select n from counter) = 0 then insert into claimed values ('a'); else insert into stamp values ('b'); end if; end $$`
    const report = await explore({
      url,
      setup: start,
      actors: { alice: (db) => db.query(branch), bob: (db) => db.query('update counter set n = 1') },
      invariant: async (db) => {
        const { rows } = await db.query(
          'select (select count(*) from claimed) + (select count(*) from stamp) as n',
        )
        return rows[0].n === '1'
      },
    })
    expect(report.verdict).toBe('passed')
  })

  it('a table that a function makes, unless there is a reset', async () => {
    const ensure = (db: Pool) => db.query('select ensure_made()')
    await expect(explore({ url, actors: { alice: ensure, bob: ensure } })).rejects.toMatchObject({
      reason: 'reset',
    })
    const report = await explore({
      url,
      actors: { alice: ensure, bob: ensure },
      reset: (db) => db.query('drop table if exists made_by_function'),
      throws: false,
    })
    expect(report.verdict).toBe('race')
  })

  it('a procedure that commits, unless there is a reset', async () => {
    const call = (db: Pool) => db.query('call commit_twice()')
    await expect(explore({ url, actors: { alice: call } })).rejects.toMatchObject({
      reason: 'reset',
      actor: 'alice',
    })
    const reset = (db: Pool) => db.query('delete from claimed')
    await explore({ url, actors: { alice: call, bob: call }, reset })
    await query(`delete from claimed`)
  })
})

/** Returns the server's answer to one message of two statements, as the letters of its messages. */
async function copyInOneMessage(url: string): Promise<string> {
  const client = new pg.Client(url)
  await client.connect()
  const letters: string[] = []
  await new Promise<void>((resolve, reject) => {
    client.query({
      submit: (connection: Connection) => connection.query('copy counter from stdin; select 1'),
      handleCopyInResponse: (connection: Connection) => {
        letters.push('G')
        connection.endCopyFrom()
      },
      handleCommandComplete: () => letters.push('C'),
      handleRowDescription: () => letters.push('T'),
      handleDataRow: () => letters.push('D'),
      handleReadyForQuery: () => {
        letters.push('Z')
        resolve()
      },
      handleError: reject,
    } as unknown as pg.Submittable)
  })
  await client.end()
  return letters.join('')
}

interface Connection {
  query(sql: string): void
  endCopyFrom(): void
}
