import assert from 'node:assert/strict'
import pg, { type Pool } from 'pg'
import { afterAll, describe, expect, it } from 'vitest'
import { inTransaction } from '../../../../examples/races/in-transaction.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { explore } from '../explore.js'
import { untilBlocked } from './until-blocked.js'

const { url } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create table key (name text primary key, by text);
  create function add_slowly(int) returns int language plpgsql as $$
    declare found int;
    begin
      select n into found from counter where id = $1;
      perform dibs_point('between read and write');
      update counter set n = found + 1 where id = $1;
      return found + 1;
    end $$;
  create function add_at_once(int) returns int language plpgsql as $$
    declare found int;
    begin
      select n into found from counter where id = $1;
      update counter set n = found + 1 where id = $1;
      return found + 1;
    end $$;
  create function twice() returns void language plpgsql as $$
    begin
      perform dibs_point('first');
      begin
        perform dibs_point('second');
        raise exception 'no';
      exception when raise_exception then
        perform dibs_point('third');
      end;
    end $$;
`)
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
afterAll(() => pool.end())

const rows = (db: Pool) => db.query('insert into counter values (1, 0), (2, 0)')

const inOrder =
  (...ids: number[]) =>
  (db: Pool) =>
    inTransaction(db, async (client) => {
      for (const id of ids) await client.query('update counter set n = n + 1 where id = $1', [id])
    })

describe('a lock wait', () => {
  it('is found, with the name of the lock', async () => {
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: inOrder(1), bob: inOrder(1) },
      schedule: ['alice', 'bob', 'alice'],
      invariant: () => false,
      throws: false,
    })
    expect(report.race?.printout).toContain('.. waits for alice (row lock, counter)')
    expect(report.race?.printout).toMatch(/alice {2}2 {2}commit +-> bob resumes: 1 row/)
  })

  it.each([
    ['unique key', `insert into key values ('x')`],
    ['advisory lock', 'select pg_advisory_xact_lock(5)'],
    ['table lock, counter', 'lock table counter'],
  ])('for a %s is one too', async (what, sql) => {
    const act = (db: Pool) => inTransaction(db, (client) => client.query(sql))
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: act, bob: act },
      schedule: ['alice', 'bob'],
      invariant: () => false,
      mayFail: () => true,
      throws: false,
    })
    expect(report.race?.steps[1]?.effect).toEqual({ kind: 'waits', for: ['alice'], what })
  })

  it('is not guessed from time: a slow statement is only slow', async () => {
    const slow = (db: Pool) => db.query('select pg_sleep(0.1)')
    const report = await explore({
      url,
      actors: { alice: slow, bob: slow },
      schedule: [],
      invariant: () => false,
      throws: false,
    })
    expect(report.race?.steps.map(({ effect }) => effect.kind)).toEqual(['done', 'done'])
  })

  it('for an actor that has ended is a stuck schedule', async () => {
    const keep = async (db: Pool) => void (await db.query('select pg_advisory_lock(6)'))
    const report = await explore({ url, actors: { alice: keep, bob: keep }, throws: false })
    expect(report.race?.failure.message).toBe(
      'Nobody can go on:\nbob waits for alice in: select pg_advisory_lock(6)',
    )
  })
})

describe('a deadlock', () => {
  it('ends soon, and its victim is always the unit that closed the circle', async () => {
    let [calmMs, deadlockedMs] = [0, 0]
    const run = (schedule: readonly string[]) =>
      explore({
        ...{ url, setup: rows, throws: false, schedule: [...schedule] },
        actors: { alice: inOrder(1, 2), bob: inOrder(2, 1) },
      })
    for (let i = 0; i < 10; i++) {
      const startedAt = performance.now()
      await run(['alice', 'alice', 'alice', 'bob'])
      const calmAt = performance.now()
      const report = await run(['alice', 'bob', i % 2 ? 'alice' : 'bob', i % 2 ? 'bob' : 'alice'])
      expect(report.race?.failure.message).toBe(`${i % 2 ? 'bob' : 'alice'} failed: deadlock detected`)
      calmMs += calmAt - startedAt
      deadlockedMs += performance.now() - calmAt
    }
    // Each would take a second longer by itself than one that nobody waits in.
    expect(deadlockedMs - calmMs).toBeLessThan(10 * 900)
  }, 60_000)

  it('is an outcome like any other', async () => {
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: inOrder(1, 2), bob: inOrder(2, 1) },
      mayFail: (error) => (error as { code?: string }).code === '40P01',
      invariant: async (db, outcomes) => {
        const done = Object.values(outcomes).filter(({ status }) => status === 'fulfilled').length
        const { rows } = await db.query('select sum(n)::int as n from counter')
        assert.equal(rows[0].n, done * 2)
      },
    })
    expect(report.isExhaustive).toBe(true)
  })

  it('of three has the same victim in each run', { timeout: 120_000 }, async () => {
    const report = await explore({
      url,
      setup: (db) => db.query('insert into counter values (1, 0), (2, 0), (3, 0)'),
      actors: { alice: inOrder(1, 2), bob: inOrder(2, 3), carol: inOrder(3, 1) },
      mayFail: (error) => (error as { code?: string }).code === '40P01',
      bound: { preemptions: 2, schedules: 400, random: 0 },
    })
    expect(report.verdict).toBe('passed')
  })
})

describe('several units that are woken at once', () => {
  const insert = (db: Pool, name: string, end: string) =>
    inTransaction(db, async (client) => {
      await client.query(`insert into key values ('x', $1)`, [name])
      if (end === 'rollback') throw new Error('changed my mind')
    })

  it('are seen in both orders, or a note says that they were not', async () => {
    const winners = new Set<string>()
    const report = await explore({
      url,
      actors: {
        alice: (db) => insert(db, 'alice', 'rollback'),
        bob: (db) => insert(db, 'bob', 'commit'),
        carol: (db) => insert(db, 'carol', 'commit'),
      },
      mayFail: () => true,
      everyOrder: true,
      invariant: async (db) => {
        const { rows } = await db.query('select by from key')
        winners.add(rows.map(({ by }) => by).join())
      },
    })
    // In two of the 22 schedules bob and carol wait for alice, who takes back what she did.
    expect(report.schedules).toBeGreaterThanOrEqual(22)
    expect(report.schedules).toBeLessThanOrEqual(24)
    const isSaid = report.notes.some((note) =>
      note.includes("the server's choice, and it was seen in one order only"),
    )
    expect(isSaid).toBe(report.schedules < 24)
    expect(report.isExhaustive).toBe(!isSaid)
    expect([...winners].toSorted()).toEqual(['bob', 'carol'])
  })
})

describe('a yield point in a function', () => {
  it('shows the race inside', async () => {
    const add = (db: Pool) => db.query('select add_slowly(1)')
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: add, bob: add },
      invariant: async (db) => {
        const { rows } = await db.query('select n from counter where id = 1')
        assert.equal(rows[0].n, 2)
      },
      throws: false,
    })
    expect(report.race?.printout.split('\n').slice(1, 4)).toEqual([
      "  alice  1  select add_slowly(1)                     -> stops at 'between read and write'",
      "  bob    1  select add_slowly(1)                     -> stops at 'between read and write'  <-- here it goes wrong: bob comes between",
      "  bob    2  … goes on from 'between read and write'  -> 1",
    ])
    expect(report.notes).toEqual([])
  })

  it('that is missing is noted', async () => {
    const add = (db: Pool) => db.query('select add_at_once(1)')
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: add, bob: add },
      invariant: () => true,
    })
    expect(report.notes).toEqual([
      "add_at_once(integer) runs as one step: it has no yield point (perform dibs_point('name')).",
    ])
  })

  it('is passed one at a time, also after an exception was caught', async () => {
    const report = await explore({
      url,
      actors: { alice: (db) => db.query('select twice()') },
      invariant: () => false,
      throws: false,
    })
    expect(
      report.race?.steps.map(({ effect }) => (effect.kind === 'point' ? effect.name : effect.kind)),
    ).toEqual(['first', 'second', 'third', 'done', 'done'])
  })

  it('obeys no lock_timeout of the caller', async () => {
    const act = (db: Pool) =>
      inTransaction(db, async (client) => {
        await client.query(`set local lock_timeout = '1ms'`)
        await client.query('select add_slowly(1)')
      })
    const report = await explore({ url, setup: rows, actors: { alice: act }, bound: { schedules: 5 } })
    expect(report.verdict).toBe('passed')
  })

  it('does nothing outside an exploration', async () => {
    await pool.query('insert into counter values (1, 0)')
    const { rows } = await pool.query('select add_slowly(1) as n')
    await pool.query('delete from counter')
    expect(rows[0].n).toBe(1)
  })
})

describe('an actor with several connections', () => {
  it('is shown with each of them', async () => {
    const both = (db: Pool) =>
      Promise.all([1, 2].map((id) => db.query('update counter set n = n + 1 where id = $1', [id])))
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: both },
      invariant: () => false,
      throws: false,
    })
    expect(report.race?.schedule).toEqual(['alice', 'alice', 'alice/2', 'alice/2'])
  })

  it('has the same names for them in each run, also where they are new', { timeout: 90_000 }, async () => {
    const add = (db: Pool, id: number) =>
      inTransaction(db, (tx) => tx.query('update counter set n = n + 1 where id = $1', [id]))
    // Each exploration connects anew, and whichever connection is there first must not be the first.
    for (let run = 0; run < 5; run++) {
      const report = await explore({
        url,
        setup: rows,
        actors: { alice: (db) => Promise.all([add(db, 1), add(db, 2), add(db, 3)]) },
        bound: { schedules: 10, random: 0 },
      })
      expect(report.verdict).toBe('passed')
    }
  })

  it('may be in its own way', async () => {
    const nested = (db: Pool) =>
      inTransaction(db, async (client) => {
        await client.query('update counter set n = 1 where id = 1')
        await db.query('update counter set n = 2 where id = 1')
      })
    const report = await explore({ url, setup: rows, actors: { alice: nested }, throws: false })
    expect(report.race?.failure.message).toContain(
      'alice/2 waits for alice in: update counter set n = 2 where id = 1',
    )
  })

  it('that leaves a transaction open fails', async () => {
    const leave = async (db: Pool) => {
      const client = await db.connect()
      await client.query('begin')
      await client.query('update counter set n = 1')
    }
    const report = await explore({ url, setup: rows, actors: { alice: leave }, throws: false })
    expect(report.race?.failure.message).toBe('alice has ended and left its transaction open.')
  })

  it('that keeps a client is noted, and goes on having connections', async () => {
    const keep = async (db: Pool) => {
      const client = await db.connect()
      await client.query('update counter set n = n + 1 where id = 1')
    }
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: keep, bob: keep },
      invariant: () => true,
    })
    expect(report.notes).toEqual([
      'An actor ended without giving back a client that it took from its pool (client.release()).',
    ])
  })

  it('that ends a connection inside a transaction frees its locks', async () => {
    const vanish = async (db: Pool) => {
      const client = await db.connect()
      await client.query('begin')
      await client.query('update counter set n = n + 1 where id = 1')
      client.release(true)
    }
    const report = await explore({ url, setup: rows, actors: { alice: vanish, bob: inOrder(1) } })
    expect(report.isExhaustive).toBe(true)
  })

  it('that does not wait for its statement is followed to the end of it', async () => {
    const floating = (db: Pool) => void db.query('update counter set n = n + 1 where id = 1')
    const report = await explore({
      url,
      setup: rows,
      actors: { alice: floating, bob: floating },
      invariant: async (db) => {
        const { rows } = await db.query('select n from counter where id = 1')
        assert.equal(rows[0].n, 2)
      },
    })
    expect(report).toMatchObject({ isExhaustive: true, schedules: 2 })
  })
})

describe('untilBlocked', () => {
  it('waits until the server says so, and returns the processes that block', async () => {
    const [alice, bob] = [await pool.connect(), await pool.connect()]
    await pool.query('insert into counter values (1, 0)')
    try {
      await alice.query('begin; update counter set n = 1')
      const waiting = bob.query('update counter set n = 2')
      const by = await untilBlocked(bob)
      expect(by).toEqual([(await alice.query('select pg_backend_pid() as pid')).rows[0].pid])
      await alice.query('commit')
      expect((await waiting).rowCount).toBe(1)
    } finally {
      alice.release()
      bob.release()
      await pool.query('delete from counter')
    }
  })

  it('fails with what the client does instead', async () => {
    const idle = await pool.connect()
    await idle.query('select 1')
    await expect(untilBlocked(idle, { withinMs: 50 })).rejects.toThrow(
      /waits for no lock after 50 ms: it is idle, and its last statement is "select 1"/,
    )
    idle.release()
  })
})
