import { createTestSchema, explore } from 'dibs/testing'
import pg, { type Pool } from 'pg'
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { Dibs } from '../../dibs.js'
import type { CrashFoundError } from '../../errors.js'
import { crashLoop } from './crash-loop.js'
import type { CrashLoopOptions } from './options.js'

const { url, query } = exploredSchema(`
  create table claim (key text primary key, status text not null);
  create table event (id int primary key);
  create table old (id int)`)

/** Each commits by itself. */
const claimFirst = async (db: Pool): Promise<string> => {
  const { rowCount } = await db.query(`insert into claim values ('k', 'pending') on conflict do nothing`)
  if (rowCount === 0) return 'somebody has it'
  await db.query('insert into event values (1)')
  return 'made'
}

const oneEvent: CrashLoopOptions['invariant'] = async (db) => {
  const { rows } = await db.query('select from event')
  if (rows.length !== 1) throw new Error(`${rows.length} events`)
}

const wrong: CrashLoopOptions = { url, run: claimFirst, invariant: oneEvent, modes: ['crash'] }

afterEach(() => vi.unstubAllEnvs())

function newPool(): Pool {
  const pool = new pg.Pool({ connectionString: url })
  onTestFinished(() => pool.end())
  return pool
}

describe('what it says', () => {
  it('throws the printout of the first point that fails, with a string to run it again', async () => {
    const error = await crashLoop(wrong).catch((thrown) => thrown)
    expect(error).toMatchObject({
      name: 'CrashFoundError',
      code: 'DIBS_CRASH_FOUND',
      replay: expect.stringMatching(/^crash:after-1@[0-9a-f]{6}$/),
    })
    expect(
      error.message.replace(/\d\.\d s/, '0.1 s').replace(/@[0-9a-f]{6}$/m, '@123abc'),
    ).toBe(`Harm at 2 of 4 points: crash 4 (2 statements, 7 runs, 0.1 s).

crash after statement 1: insert into claim values ('k', 'pending') on conflict do nothing
  run         1  insert into claim values ('k', 'pending') on conflict do nothing  -> 1 row, unseen
  ✕ the process is killed
  recovery 1  1  insert into claim values ('k', 'pending') on conflict do nothing  -> 0 rows
  Wrong: 0 events
  Replay: DIBS_REPLAY=crash:after-1@123abc

Also
  0 events
    crash:before-2

  point     crash  statement
  before 1  ok     insert into claim values ('k', 'pending') on conflict do nothing
  after 1   FAILS
  before 2  FAILS  insert into event values (1)
  after 2   ok

Ways that recovery took
  3 points: nothing to do, as after a run without a fault
  1 point: from the start, as on fresh data`)
    expect(error.toJSON()).toEqual({
      name: 'CrashFoundError',
      message: error.message,
      code: 'DIBS_CRASH_FOUND',
      replay: error.replay,
    })
  })

  it('is plain JSON', async () => {
    const report = await crashLoop({ ...wrong, throws: false })
    expect(JSON.parse(JSON.stringify(report))).toEqual(report)
    expect(report.points[2]).toMatchObject({
      replay: 'crash:after-1',
      fault: { mode: 'crash', side: 'after', statement: 1 },
      verdict: 'failed',
      failure: { kind: 'invariant', message: '0 events' },
      run: 'died',
      recoveries: 1,
      path: 'nothing to do',
      entersRecovery: false,
    })
  })

  it('one point is run again by its string', async () => {
    const report = await crashLoop({ ...wrong, replay: 'crash:after-1', throws: false })
    expect(report.points.map(({ replay }) => replay)).toEqual(['none', 'crash:after-1'])
    const again = await crashLoop({ ...wrong, replay: `crash:after-1@${report.identity}`, throws: false })
    expect(again.points.map(({ replay }) => replay)).toEqual(['none', 'crash:after-1'])
  })

  describe('DIBS_REPLAY', () => {
    const warnings: string[] = []
    const replaysOf = async (options: CrashLoopOptions): Promise<string[]> =>
      (await crashLoop({ ...options, throws: false })).points.map(({ replay }) => replay)
    const inFull = ['none', 'crash:before-1', 'crash:after-1', 'crash:before-2', 'crash:after-2']
    beforeEach(async () => {
      const { replay } = (await crashLoop(wrong).catch((error) => error)) as CrashFoundError
      expect(replay).toMatch(/^crash:after-1@[0-9a-f]{6}$/)
      vi.stubEnv('DIBS_REPLAY', replay)
      vi.spyOn(console, 'warn').mockImplementation((text) => void warnings.push(text))
    })
    afterEach(() => {
      vi.restoreAllMocks()
      warnings.length = 0
    })

    it('runs that one point of the loop that printed it', async () => {
      expect(await replaysOf(wrong)).toEqual(['none', 'crash:after-1'])
      expect(warnings).toEqual([])
    })

    it('is ignored by other loops and by explorations, which say so', async () => {
      expect(await replaysOf({ ...wrong, name: 'another' })).toEqual(inFull)
      expect(await replaysOf({ ...wrong, invariant: () => true })).toEqual(inFull)
      const { mode } = await explore({ url, actors: { alice: (db) => db.query('select from event') } })
      expect(mode).toBe('search')
      expect(warnings).toEqual([
        expect.stringMatching(
          /^DIBS_REPLAY=\S+ is not for the crash loop "another" at .*crash-loop\.test\.ts/,
        ),
        expect.stringMatching(/^DIBS_REPLAY=\S+ is not for the crash loop at .*crash-loop\.test\.ts/),
        expect.stringMatching(/^DIBS_REPLAY=\S+ is not for the exploration at /),
      ])
    })

    it('of an exploration is ignored', async () => {
      vi.stubEnv('DIBS_REPLAY', 'v1:aa:0000@000000')
      expect(await replaysOf(wrong)).toEqual(inFull)
    })

    it('gives way to a full loop where the code has changed so that the point is gone', async () => {
      vi.stubEnv('DIBS_REPLAY', `crash:before-9@${(await crashLoop({ ...wrong, throws: false })).identity}`)
      warnings.length = 0
      expect(await replaysOf(wrong)).toEqual(inFull)
      expect(warnings).toEqual([
        expect.stringMatching(
          / no longer fits the crash loop at .*, whose steps have changed: it runs in full\.\n.*not reached, crash:before-9/,
        ),
      ])
    })

    it('without an identity counts for every loop that has such a point', async () => {
      vi.stubEnv('DIBS_REPLAY', 'crash:before-1')
      expect(await replaysOf({ ...wrong, name: 'another' })).toEqual(['none', 'crash:before-1'])
      vi.stubEnv('DIBS_REPLAY', 'process:before-1:SIGKILL')
      warnings.length = 0
      expect(await replaysOf(wrong)).toEqual(inFull)
      expect(warnings).toEqual([expect.stringContaining(' does not fit the crash loop at ')])
    })

    it('that is no such string is refused', async () => {
      vi.stubEnv('DIBS_REPLAY', 'crsh:before-1')
      await expect(crashLoop(wrong)).rejects.toThrow('`DIBS_REPLAY` must be the string of a printout')
    })
  })

  it('what is right alone and not when it is run again says so', async () => {
    const run = (db: Pool) => db.query('insert into old values (1)')
    const invariant: CrashLoopOptions['invariant'] = async (db) =>
      (await db.query('select from old')).rows.length === 1
    const again = await crashLoop({ ...wrong, run, invariant, throws: false })
    expect(again.points[0]?.failure?.message).toBe(
      'The invariant returned false.\n`run` alone is right. Run again, as somebody does who got no answer, it is not. If nobody does that, give a `recover`.',
    )
    const recovered = await crashLoop({ ...wrong, run, recover: run, invariant, throws: false })
    expect(recovered.points[0]?.failure?.message).toContain('`recover` after it is not.')
  })

  it('a mistake in the invariant is told by its place', async () => {
    const report = await crashLoop({
      ...wrong,
      invariant: () => (undefined as unknown as { length: number }).length > 0,
      throws: false,
    })
    expect(report.printout).toMatch(/Wrong: the invariant threw TypeError: .* at .*crash-loop\.test\.ts:\d+/)
  })

  it('a statement is shown to its end', async () => {
    const { printout } = await crashLoop({
      ...wrong,
      run: (db) =>
        db.query(`update event set id = 1 where id in (select id from event where id = 1 and id <> 2 and id <> 3)
                  and exists (select from claim where status = 'pending' and key = 'the last')`),
      recover: () => {},
      invariant: (_db, { fault }) => fault === undefined,
      throws: false,
    })
    expect(printout).toMatch(/\n {10,}key = 'the last'\)\n/)
  })

  it('statements that are not the same each time are noted', async () => {
    let n = 0
    const { notes } = await crashLoop({
      ...wrong,
      run: (db) => db.query(`select ${n++}`),
      recover: () => {},
      invariant: () => true,
    })
    expect(notes).toContainEqual(
      expect.stringMatching(
        /^`run` does not send the same statements each time: statement 1 was another one at crash:before-1/,
      ),
    )
  })

  it('the ways that recovery took, and the points after which it took none of its own', async () => {
    const { points, paths, notes } = await crashLoop({
      ...wrong,
      run: claimFirst,
      recover: async (db) => {
        const { rows } = await db.query(`select from claim where not exists (select from event)`)
        if (rows.length > 0) await db.query('insert into event values (1)')
      },
      progress: () => true,
      invariant: () => true,
    })
    expect(points.map(({ replay, path, entersRecovery }) => [replay, path, entersRecovery])).toEqual([
      ['none', 'nothing to do', false],
      ['crash:before-1', 'nothing to do', false],
      ['crash:after-1', 'A', true],
      ['crash:before-2', 'A', true],
      ['crash:after-2', 'nothing to do', false],
    ])
    expect(paths).toContainEqual({
      name: 'A',
      points: 2,
      statements: [
        'select from claim where not exists (select from event) -> SELECT 1',
        'insert into event values (1) -> INSERT 1',
      ],
    })
    expect(notes).toEqual([])
    const idle = await crashLoop({ ...wrong, recover: () => {}, invariant: () => true })
    expect(idle.notes).toEqual([
      expect.stringMatching(/^Recovery never did anything that it does not do on fresh data/),
    ])
  })

  it('what fails with nothing done to it fails at once', async () => {
    const report = await crashLoop({ ...wrong, run: (db) => db.query('select from event'), throws: false })
    expect(report.points).toHaveLength(1)
    expect(report.summary).toMatch(/^It fails with nothing done to it \(1 statement, 1 run,/)
    const broken = await crashLoop({
      ...wrong,
      run: () => {
        throw new Error('no way')
      },
      throws: false,
    })
    expect(broken.points[0]?.failure).toEqual({
      kind: 'failed',
      message: '`run` failed with nothing done to it: no way',
    })
  })
})

describe('what it does with a database', () => {
  it('leaves its tables as they were', async () => {
    await crashLoop({ ...wrong, throws: false })
    expect((await query('select from claim union all select from event')).rows).toHaveLength(0)
  })

  it('refuses tables that hold rows', async () => {
    await query('insert into old values (1)')
    await expect(
      crashLoop({ ...wrong, run: (db) => db.query('update old set id = 2'), invariant: () => true }),
    ).rejects.toMatchObject({ code: 'DIBS_EXPLORATION', reason: 'reset' })
    expect((await query('select id from old')).rows).toHaveLength(1)
  })

  it('can be told how to put them back', async () => {
    const report = await crashLoop({
      ...wrong,
      reset: (db) => db.query('delete from claim; delete from event'),
      throws: false,
    })
    expect(report.points.filter(({ verdict }) => verdict === 'failed')).toHaveLength(2)
    expect((await query('select from claim')).rows).toHaveLength(0)
  })

  it('time can be moved by the clock of a test schema', async () => {
    const pool = newPool()
    await using schema = await createTestSchema(pool)
    await using _dibs = await Dibs.open({ pool, schema: schema.name })
    const { verdict, printout, points } = await crashLoop({
      pool,
      modes: ['crash'],
      setup: async (db) => {
        await schema.clock.reset()
        await db.query(
          `insert into claim select 'lease', (${schema.name}.clock() + interval '1 minute')::text`,
        )
      },
      run: (db) => db.query('select from claim'),
      recover: (db) =>
        db.query(`insert into event select 1 from claim where status::timestamptz < ${schema.name}.clock()`),
      advance: () => schema.clock.advance(120_000),
      progress: async (db) => (await db.query('select from event')).rows.length === 1,
    })
    expect(verdict, printout).toBe('passed')
    expect(points[0]?.recoveries).toBe(2)
  })

  it('code on top of Dibs is right at all points', async () => {
    const pool = newPool()
    await using schema = await createTestSchema(pool)
    await using _migrated = await Dibs.open({ pool, schema: schema.name })
    const report = await crashLoop({
      url,
      // A killed instance loses its memory, so each instance has a Dibs of its own.
      run: async (db) => {
        await using dibs = await Dibs.open({ pool: db, schema: schema.name, migrate: 'off', listen: false })
        await dibs.transaction(async (tx) => {
          const { rowCount } = await tx.query(`insert into claim values ('k', 'made') on conflict do nothing`)
          if (rowCount === 1) await tx.query('insert into event values (1)')
        })
      },
      invariant: oneEvent,
    })
    expect(report.points.length).toBeGreaterThan(30)
  })
})

describe('what it refuses', () => {
  it.each<[string, Partial<Record<keyof CrashLoopOptions | 'rum', unknown>>, RegExp]>([
    [
      'a misspelled option',
      { rum: 1 },
      /^Unknown option "rum"\. Did you mean run\? Expected one of: name, pool, url, setup/,
    ],
    ['no program', { run: undefined }, /^`run` must be a function, not undefined/],
    [
      'nothing to judge by',
      { invariant: undefined },
      /^`invariant` or `progress` or `effects` must be given/,
    ],
    ['neither pool nor url', { url: undefined }, /^`pool` or `url` must be given, and not both/],
    [
      'an unknown mode',
      { modes: ['crush'] },
      /^`modes` must be a list of crash, error, half-open, zombie, server, process, not an array/,
    ],
    [
      'a pool that is none',
      { pool: 'postgres://', url: undefined },
      /^`pool` must be a Pool of pg, not "postgres/,
    ],
    ['no modes', { modes: [] }, /^`modes` must be a list of/],
    ['a code that is none', { errors: ['deadlock'] }, /^`errors` must be a list of SQLSTATEs/],
    [
      'a bound that is none',
      { bound: { points: 3 } },
      /^Unknown option "bound\.points"\. Expected one of: recoveries, statements/,
    ],
    [
      'no recoveries',
      { bound: { recoveries: 0 } },
      /^`bound.recoveries` must be a whole number from 1, not 0/,
    ],
    [
      'a string of nobody',
      { replay: 'crash:3' },
      /^`replay` must be the string of a printout, like crash:after-3/,
    ],
    ['a point that there is not', { replay: 'error:after-1:40001' }, /^`replay` must be the string/],
    ['no options', undefined as never, /^`options` must be an object\b.*, not undefined/],
    [
      'half a recovery',
      { bound: { recoveries: 1.5 } },
      /^`bound.recoveries` must be a whole number from 1, not 1.5/,
    ],
    ['half a string', { replay: 'error:before-1' }, /^`replay` must be the string of a printout/],
    [
      'a point that is not there',
      { replay: 'crash:before-9' },
      /point that was not reached, crash:before-9: .* 2 statements/,
    ],
    [
      'a second crash without a first',
      { modes: ['zombie'], duringRecovery: true },
      /^`duringRecovery` goes with mode/,
    ],
    ['effects of somebody else', { effects: [] }, /^`effects` must be what recordEffects\(\) returns/],
  ])('%s', async (_, options, message) => {
    const given = options && ({ ...wrong, ...options } as CrashLoopOptions)
    await expect(crashLoop(given)).rejects.toThrow(message)
  })

  it.each<[string, Partial<CrashLoopOptions>, string, RegExp]>([
    [
      'a setup that fails',
      { setup: (db) => db.query('select nonsense') },
      'setup',
      /^`setup` failed before run 1: /,
    ],
    [
      'an advance that fails',
      { advance: (db) => db.query('select nonsense'), progress: () => false },
      'advance',
      /^`advance` failed in run 1: /,
    ],
    [
      'an invariant that writes',
      { invariant: (db) => db.query('delete from event') },
      'invariant',
      /tried to change data/,
    ],
    [
      'progress that writes',
      { progress: (db) => db.query('delete from event') },
      'progress',
      /tried to change data/,
    ],
    [
      'progress that goes on',
      { progress: (db) => void db.query('select pg_sleep(0.01)') },
      'progress',
      /^`progress` went on after it had returned/,
    ],
    [
      'a program that changes tables',
      { run: (db) => db.query('create table new (id int)') },
      'reset',
      /changes the schema/,
    ],
    [
      'an advance that never ends',
      {
        patienceMs: 1_500,
        run: async (db) => {
          const tx = await db.connect()
          await tx.query('begin')
          await tx.query(`insert into claim values ('k', 'left open')`)
        },
        recover: () => {},
        advance: (db) => db.query(`insert into claim values ('k', 'too')`),
        progress: () => false,
        invariant: () => true,
      },
      'advance',
      /^`advance` has not come to its end in 1500 ms/,
    ],
    [
      'a procedure that commits by itself',
      { run: (db) => db.query('do $$ begin perform 1; commit; end $$') },
      'reset',
      /^run runs something that commits by itself/,
    ],
    [
      'a transaction that outlives it',
      {
        run: async (db) => {
          const tx = await db.connect()
          await tx.query('begin')
          await tx.query('insert into event values (1)')
          await tx.query(`prepare transaction 'crash_loop'`)
        },
      },
      'reset',
      /prepares a transaction, which outlives it/,
    ],
    [
      'a program that sends nothing',
      { run: () => {} },
      'outside',
      /^`run` ended without sending a statement/,
    ],
    [
      'a program that never ends',
      {
        bound: { statements: 20 },
        run: async (db) => {
          for (;;) await db.query('select 1')
        },
      },
      'endless',
      /^run does not end: 20 statements so far/,
    ],
    [
      'a program that goes past it',
      { run: () => query('select 1') },
      'outside',
      /opened a connection of its own/,
    ],
  ])('%s', async (_, options, reason, message) => {
    await expect(crashLoop({ ...wrong, ...options } as CrashLoopOptions)).rejects.toMatchObject({
      code: 'DIBS_EXPLORATION',
      reason,
      message: expect.stringMatching(message),
    })
  })

  it('a loop within a loop', async () => {
    await expect(
      crashLoop({ ...wrong, throws: false, run: () => crashLoop(wrong) }).then(
        ({ points }) => points[0]?.failure?.message,
      ),
    ).resolves.toMatch(/must not crash itself/)
  })
})
