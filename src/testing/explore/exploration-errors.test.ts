import { once } from 'node:events'
import { createServer } from 'node:net'
import pg, { type Pool } from 'pg'
import postgres from 'postgres'
import { afterAll, describe, expect, inject, it, onTestFinished, vi } from 'vitest'
import { createRole, directUrl, freshName } from '../../../test/database.js'
import { exploredSchema } from '../../../test/explored-schema.js'
import { ExplorationError } from '../../errors.js'
import { explore } from './explore.js'
import type { ExploreOptions } from './options.js'

const { url, query } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create table kept (id int primary key);
  insert into kept values (1);
`)

const start = (db: Pool) => db.query('insert into counter values (1, 0)')
const readCounter = (db: Pool) => db.query('select n from counter')
const add = (db: Pool) => db.query('update counter set n = n + 1')

async function refusal(options: ExploreOptions): Promise<ExplorationError> {
  const error = await explore(options).catch((reason: unknown) => reason)
  expect(error).toBeInstanceOf(ExplorationError)
  return error as ExplorationError
}

const rows = (table: string) =>
  query(`select count(*)::int as n from ${table}`).then((found) => found.rows[0].n)

describe('what cannot be explored', () => {
  it('an actor that never ends', async () => {
    const forever = async (db: Pool) => {
      for (;;) await readCounter(db)
    }
    const error = await refusal({ url, actors: { alice: forever }, bound: { steps: 20 } })
    expect(error).toMatchObject({ reason: 'endless', actor: 'alice' })
    expect(error.message).toBe(
      'alice does not end: 20 steps in one schedule, the last one "select n from counter". Bound its loop (retries, polling), or raise bound.steps.',
    )
  })

  it('an actor that waits for something outside the database, with its place in the code', async () => {
    const never = async (db: Pool) => {
      await readCounter(db)
      await new Promise(() => {})
    }
    const error = await refusal({ url, actors: { alice: never, bob: readCounter }, patienceMs: 1_500 })
    expect(error).toMatchObject({ reason: 'stalled', actor: 'alice' })
    expect(error.message).toMatch(
      /^alice has waited 1500 ms for something that cannot be seen from here: a timer, the network, .* It last used the database at .*exploration-errors\.test\.ts:\d+/,
    )
  })

  it.each([
    ['1300', /^alice has waited 1300 ms for /],
    ['soon', /^`DIBS_PATIENCE_MS` must be a number of milliseconds, and is "soon"/],
  ])('the patience that the environment names: %s', async (named, message) => {
    vi.stubEnv('DIBS_PATIENCE_MS', named)
    onTestFinished(() => void vi.unstubAllEnvs())
    const never = () => new Promise(() => {})
    await expect(
      explore({ url, actors: { alice: never, bob: readCounter }, invariant: () => {} }),
    ).rejects.toThrow(message)
  })

  it('a lock that another session holds, which is named', async () => {
    const stranger = new pg.Client({ connectionString: url, application_name: 'a stranger' })
    await stranger.connect()
    await stranger.query('begin; lock table counter')
    try {
      const error = await refusal({ url, actors: { alice: add }, patienceMs: 1_500 })
      expect(error).toMatchObject({ reason: 'stalled', actor: 'alice' })
      expect(error.message).toContain(
        '(a stranger: "begin; lock table counter"), which is none of the actors',
      )
    } finally {
      await stranger.end()
    }
  })

  it('a lock that another session holds and releases is waited for', async () => {
    const stranger = new pg.Client({ connectionString: url })
    await stranger.connect()
    await stranger.query('begin; lock table counter in share mode')
    const freed = setTimeout(() => void stranger.query('commit'), 150)
    const report = await explore({
      url,
      actors: { alice: add, bob: add },
      bound: { schedules: 1, random: 0 },
    })
    clearTimeout(freed)
    await stranger.end()
    expect(report.verdict).toBe('passed')
  })

  it('an invariant that changes data', async () => {
    const error = await refusal({ url, setup: start, actors: { alice: add }, invariant: add })
    expect(error).toMatchObject({ reason: 'invariant' })
    expect(error.message).toContain(
      'The invariant tried to change data: cannot execute UPDATE in a read-only transaction',
    )
    expect(await rows('counter')).toBe(0)
  })

  it('a setup that fails', async () => {
    const error = await refusal({
      url,
      setup: (db) => db.query('insert into nowhere values (1)'),
      actors: { alice: readCounter },
    })
    expect(error).toMatchObject({ reason: 'setup', cause: { code: '42P01' } })
    expect(error.message).toBe('`setup` failed before schedule 1: relation "nowhere" does not exist')
  })

  it('a role without the right to set deadlock_timeout, unless deadlocks may be slow', async () => {
    const role = freshName('plain')
    await createRole(role)
    const plain = new URL(url)
    plain.username = role
    const options = {
      url: plain.href,
      actors: { alice: (db: Pool) => db.query('select 1') },
    }
    try {
      const error = await refusal(options)
      expect(error).toMatchObject({ reason: 'privilege' })
      expect(error.message).toContain(`The role ${role} has no right to set deadlock_timeout`)
      expect(error.message).toContain(`grant set on parameter deadlock_timeout to "${role}"`)
      expect((await explore({ ...options, slowDeadlocks: true })).verdict).toBe('passed')
    } finally {
      await query(`drop role ${role}`)
    }
  })

  it.skipIf(!inject('pgBouncerUrl'))('a connection through a pooler', async () => {
    const error = await refusal({ url: inject('pgBouncerUrl') as string, actors: { alice: readCounter } })
    expect(error).toMatchObject({ reason: 'connection' })
    expect(error.message).toContain('goes through a pooler')
  })

  it('a server that is not there', async () => {
    const listener = createServer().listen(0, '127.0.0.1')
    await once(listener, 'listening')
    const { port } = listener.address() as { port: number }
    listener.close()
    const error = await refusal({
      url: `postgres://nobody@127.0.0.1:${port}/none`,
      actors: { alice: readCounter },
    })
    expect(error).toMatchObject({ reason: 'connection' })
    expect(error.message).toContain('ECONNREFUSED')
  })

  it('TLS', async () => {
    const error = await refusal({
      url: 'postgres://nobody@127.0.0.1:1/none?sslmode=require',
      actors: { alice: readCounter },
    })
    expect(error.message).toContain('TLS cannot be looked into')
  })

  it('neither pool nor url, no actors, bad names', async () => {
    await expect(explore({ actors: { alice: readCounter } })).rejects.toMatchObject({
      code: 'DIBS_INVALID_INPUT',
      field: 'pool',
    })
    await expect(explore({ url, actors: {} })).rejects.toMatchObject({ field: 'actors' })
    await expect(explore({ url, actors: { 'a b': readCounter } })).rejects.toThrow('without blanks')
    await expect(explore({ url, actors: { alice: 'look' as never } })).rejects.toThrow(
      '`actors.alice` must be a function, not a string',
    )
  })

  it('options that are misspelled or out of bounds', async () => {
    const refused = (options: object, message: string) =>
      expect(explore({ url, actors: { alice: readCounter }, ...options })).rejects.toThrow(message)
    await refused({ invariants: readCounter }, 'invariants')
    await refused(
      { isolation: 'serialisable' },
      "must be 'read committed', 'repeatable read' or 'serializable', not",
    )
    await refused({ bound: { schedules: 0 } }, '`bound.schedules` must be a whole number from 1, not 0')
    await refused(
      { bound: { schedules: Number.NaN } },
      '`bound.schedules` must be a whole number from 1, not NaN',
    )
    await refused({ bound: { seconds: 3 } }, 'Unknown option "bound.seconds"')
    await refused({ patienceMs: 0 }, 'must be a whole number of milliseconds from 1 to')
    await refused({ invariant: 'n > 0' }, '`invariant` must be a function, not a string')
    await refused({ setup: {} }, '`setup` must be a function, not a plain object')
    await refused({ clockStartsAt: '2030-01-01' }, '`clockStartsAt` must be a Date, not a string')
    await refused(
      { clockStartsAt: new Date('tomorrow') },
      '`clockStartsAt` must be a valid Date, not an Invalid Date',
    )
    await refused({ schedule: 'aab' }, '`schedule` must be an array of strings, not a string')
    await refused({ seed: 'x' }, '`seed` must be a whole number, not "x"')
    await refused({ throws: 0 }, '`throws` must be true or false, not 0')
  })

  it('an exploration within an exploration', async () => {
    const within = (db: Pool) => readCounter(db).then(() => explore({ url, actors: { bob: readCounter } }))
    const report = await explore({ url, actors: { alice: within }, throws: false })
    expect(report.race?.failure.message).toContain('this call comes from within an exploration')
  })

  it('a schema that actors change, unless a reset restores it', async () => {
    const make = (db: Pool) => db.query('create table if not exists made (id int)')
    const error = await refusal({ url, actors: { alice: make, bob: make } })
    expect(error).toMatchObject({ reason: 'reset', actor: 'alice' })
    expect(error.message).toContain('alice changes the schema: "create table if not exists made (id int)"')
    const report = await explore({
      url,
      actors: { alice: make, bob: make },
      reset: (db) => db.query('drop table if exists made'),
      throws: false,
    })
    expect(report.race?.failure.name).toBe('error 23505')
  })

  it.each(['setup', 'invariant'] as const)('a %s that does not wait for what it begins', async (helper) => {
    const check = async (db: Pool) => {
      await db.query('select 1')
      await db.query('select 2')
      throw new Error('nobody hears this')
    }
    const options = { url, actors: { alice: readCounter }, [helper]: (db: Pool) => void check(db) }
    const error = await refusal(options)
    expect(error).toMatchObject({ reason: helper })
    expect(error.message).toMatch(
      new RegExp(
        `^\`${helper}\` went on after it had returned, at .*exploration-errors.test.ts.*: an \`await\``,
      ),
    )
  })

  it('an invariant that goes on later', async () => {
    const check = async (db: Pool) => {
      await new Promise((resolve) => setTimeout(resolve, 5))
      await db.query('select 1')
      throw new Error('nobody hears this')
    }
    const slowly = async (db: Pool) => {
      await new Promise((resolve) => setTimeout(resolve, 20))
      await readCounter(db)
    }
    const error = await refusal({
      url,
      actors: { alice: slowly, bob: slowly },
      invariant: (db) => void check(db),
    })
    expect(error.message).toContain('`invariant` went on after it had returned')
  })

  it('rows of a run that was interrupted', async () => {
    await query(`insert into counter values (1, 9)`)
    const error = await refusal({ url, setup: start, actors: { alice: readCounter } })
    await query(`delete from counter`)
    expect(error.message).toContain('perhaps since a run that was interrupted: delete it')
  })
})

describe('an actor that uses a connection outside its handle', () => {
  const other = new pg.Pool({ connectionString: url })
  afterAll(() => other.end())

  it('of another pool', async () => {
    await other.query('select 1') // connected before
    const error = await refusal({ url, actors: { alice: () => readCounter(other), bob: readCounter } })
    expect(error).toMatchObject({ reason: 'outside', actor: 'alice' })
    expect(error.message).toContain('alice used another pool or client to send "select n from counter"')
    expect(error.message).toContain('pass the pool that the code uses as `pool`')
  })

  it('that it opens itself', async () => {
    const own = async () => {
      const client = new pg.Client(url)
      await client.connect()
      await client.end()
    }
    const error = await refusal({ url, actors: { alice: own, bob: readCounter } })
    expect(error).toMatchObject({ reason: 'outside', actor: 'alice' })
    expect(error.message).toContain(`alice opened a connection of its own to port ${new URL(directUrl).port}`)
  })

  it('of another driver, connected before', async () => {
    const sql = postgres(url, { max: 1, fetch_types: false })
    await sql`select 1`
    const act = async (db: Pool) => {
      await readCounter(db)
      await sql`select n from counter`
    }
    const error = await refusal({ url, actors: { alice: act, bob: readCounter } })
    await sql.end()
    expect(error).toMatchObject({ reason: 'outside', actor: 'alice' })
    expect(error.message).toContain('alice sent something through another connection')
  })

  it('that the explorer does not see: it ends without a statement', async () => {
    const error = await refusal({ url, actors: { alice: readCounter, bob: () => 'done' } })
    expect(error).toMatchObject({ reason: 'outside', actor: 'bob' })
    expect(error.message).toContain('bob ended without sending a statement that the explorer could see')
  })
})

describe('rows that were there before', () => {
  it('are not deleted: setup adds to them', async () => {
    const error = await refusal({
      url,
      setup: (db) => db.query('insert into kept values (2)'),
      actors: { alice: readCounter },
    })
    expect(error).toMatchObject({ reason: 'reset' })
    expect(error.message).toMatch(/kept \(1 row now\).*Make the rows in `setup`/)
    await query(`delete from kept where id = 2`)
    expect(await rows('kept')).toBe(1)
  })

  it('are not deleted: setup updates them', async () => {
    const error = await refusal({
      url,
      setup: (db) => db.query('update kept set id = 1'),
      actors: { alice: readCounter },
    })
    expect(error).toMatchObject({ reason: 'reset' })
    expect(await rows('kept')).toBe(1)
  })

  it.each([
    [
      'beside deleting some',
      ['delete from kept where id = 9', 'insert into kept values (9)', 'update kept set id = id'],
    ],
    ['under a lock', ['lock table kept', 'update kept set id = id']],
    [
      'after altering the table',
      ['alter table kept add column if not exists extra int', 'update kept set extra = 0'],
    ],
  ])('are not deleted: setup updates them %s', async (_, statements) => {
    const setup = async (db: Pool) => {
      const client = await db.connect()
      try {
        for (const sql of ['begin', ...statements, 'commit']) await client.query(sql)
      } finally {
        client.release()
      }
    }
    const error = await refusal({ url, setup, actors: { alice: readCounter } })
    expect(error).toMatchObject({ reason: 'reset' })
    expect(await rows('kept')).toBe(1)
  })

  it('are not deleted: actors write', async () => {
    const error = await refusal({ url, actors: { alice: (db) => db.query('update kept set id = 1') } })
    expect(error).toMatchObject({ reason: 'reset' })
    expect(await rows('kept')).toBe(1)
  })

  it('may be restored by the user', async () => {
    const update = (db: Pool) => db.query('update kept set id = id + 1')
    const report = await explore({
      url,
      actors: { alice: update, bob: update },
      reset: (db) => db.query('update kept set id = 1'),
    })
    expect(report.isExhaustive).toBe(true)
    expect(await rows('kept')).toBe(1)
  })

  it('are setup’s own business if it deletes them itself', async () => {
    await query(`insert into counter values (9, 9)`)
    const setup = async (db: Pool) => {
      await db.query('delete from counter')
      await start(db)
      await db.query('update counter set n = 5')
    }
    const report = await explore({ url, setup, actors: { alice: add, bob: add } })
    expect(report.isExhaustive).toBe(true)
  })
})
