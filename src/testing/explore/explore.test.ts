import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg, { type Pool } from 'pg'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { RaceFoundError, ScheduleDivergedError } from '../../errors.js'
import { explore } from './explore.js'
import type { ExploreOptions } from './options.js'

const { url } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create table entry (id int generated always as identity primary key, text text, at timestamptz);
  create table pair (a int primary key, b int);
`)
const pool = new pg.Pool({ connectionString: url, max: 2 })
pool.on('error', () => {})
afterAll(() => pool.end())

const start = (db: Pool) => db.query('insert into counter values (1, 0)')
const n = async (db: Pool): Promise<number> => (await db.query('select n from counter')).rows[0].n

async function addOne(db: Pool): Promise<void> {
  const { rows } = await db.query('select n from counter where id = $1', [1])
  await db.query('update counter set n = $1 where id = $2', [rows[0].n + 1, 1])
}

const lostUpdate = {
  url,
  setup: start,
  actors: { alice: addOne, bob: addOne },
  invariant: async (db: Pool) => assert.equal(await n(db), 2, 'somebody was not counted'),
} satisfies ExploreOptions

async function caught(options: ExploreOptions): Promise<RaceFoundError> {
  const error = await explore(options).catch((reason: unknown) => reason)
  assert.ok(error instanceof RaceFoundError, String(error))
  return error
}

describe('a race', () => {
  it('is thrown with its schedule, its printout and a string to replay it', async () => {
    const { schedule, printout, replay, message } = await caught(lostUpdate)
    expect(schedule).toEqual(['alice', 'bob', 'bob', 'bob', 'alice', 'alice'])
    expect(message).toBe(printout)
    expect(printout).toBe(
      [
        'Race found in schedule 3 (2 switches, READ COMMITTED).',
        '  alice  1  select n from counter where id = 1     -> 0',
        '  bob    1  select n from counter where id = 1     -> 0  <-- here it goes wrong: bob comes between',
        '  bob    2  update counter set n = 1 where id = 1  -> 1 row',
        '  bob    3  commit (implicit)',
        '  alice  2  update counter set n = 1 where id = 1  -> 1 row',
        '  alice  3  commit (implicit)',
        '  Lost update on row 1 of counter: alice read n (alice 1) and set it (alice 2), over a change that bob committed in between (bob 3).',
        '  AssertionError: somebody was not counted',
        '  1 !== 2',
        `  Replay: DIBS_REPLAY=${replay}`,
      ].join('\n'),
    )
    expect(replay).toMatch(/^v1:abbbaa:[0-9a-f]{12}@[0-9a-f]{6}$/)
  })

  it('is written as a page as well, and names it at its end', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'dibs-page-'))
    const page = join(folder, 'race.html')
    try {
      const { printout, report } = await caught({ ...lostUpdate, page })
      expect(printout.split('\n').at(-1)).toBe(`  Page: ${page}`)
      expect(report).toMatchObject({
        page,
        race: { links: [{ kind: 'misses', from: 3, to: 0 }], anomaly: { name: 'lost update' } },
      })
      expect(readFileSync(page, 'utf8')).toContain('somebody was not counted')
    } finally {
      rmSync(folder, { recursive: true })
    }
    await expect(explore({ ...lostUpdate, page: '' })).rejects.toThrow(
      '`page` must be a string of at least 1 character',
    )
  })

  it('is returned with `throws: false`, as plain JSON of the same type as a success', async () => {
    const report = await explore({ ...lostUpdate, throws: false })
    expect(JSON.parse(JSON.stringify(report))).toEqual(report)
    expect(report).toMatchObject({
      verdict: 'race',
      isExhaustive: false,
      schedules: 3,
      actors: ['alice', 'bob'],
    })
    const success = await explore({ ...lostUpdate, invariant: undefined, throws: false })
    expect(JSON.parse(JSON.stringify(success))).toEqual(success)
    expect(success).toMatchObject({ verdict: 'passed', isExhaustive: true, preemptions: null })
  })

  it('comes again from its string, every time, and that one schedule alone is run', async () => {
    const { replay, printout } = await caught(lostUpdate)
    for (let i = 0; i < 5; i++) {
      const again = await caught({ ...lostUpdate, replay })
      expect(again.schedule).toEqual(['alice', 'bob', 'bob', 'bob', 'alice', 'alice'])
      // Only a search knows which order was right.
      const shown = printout.replace(/ {2}<-- here it goes wrong.*$/m, '')
      expect(shown).not.toBe(printout)
      expect(again.printout.split('\n').slice(1)).toEqual(shown.split('\n').slice(1))
      expect((again.report as { schedules: number }).schedules).toBe(1)
    }
  })

  it('is found by an invariant that returns false', async () => {
    const { printout } = await caught({ ...lostUpdate, invariant: async (db) => (await n(db)) === 2 })
    expect(printout).toContain('The invariant returned false.')
  })

  it('is not reported as a race if the actors ran one after the other', async () => {
    const { printout, report } = await caught({
      ...lostUpdate,
      actors: { alice: addOne },
      invariant: async (db) => assert.equal(await n(db), 2),
    })
    expect(printout).toContain('with nobody in between: a mistake in the code, not a race')
    expect(report).toMatchObject({ race: { isSerial: true } })
  })

  it('leaves the tables empty and the sequences where they were', async () => {
    await caught({
      url,
      actors: { alice: (db) => db.query(`insert into entry (text) values ('x')`) },
      invariant: () => false,
    })
    const { rows } = await pool.query('insert into entry (text) values (null) returning id')
    await pool.query('delete from entry')
    const again = await pool.query('select count(*)::int as rows from counter')
    expect([rows[0].id, again.rows[0].rows]).toEqual([1, 0])
  })
})

describe('the search', () => {
  it('knows how many schedules there are', async () => {
    const actors = { alice: (db: Pool) => insertPair(db, 1), bob: (db: Pool) => insertPair(db, 2) }
    // Two actors of three steps each that do not wait for each other: 6 over 3.
    const every = await explore({ url, actors, everyOrder: true })
    expect(every).toMatchObject({
      schedules: 20,
      reduction: { off: 'the option everyOrder is set', repeats: 0, widened: [] },
    })
    expect(every.summary).toMatch(
      /^No violation in all 20 schedules \(2 actors, at most 6 steps, READ COMMITTED/,
    )
    // The steps of the two actors commute, so one schedule stands for all.
    const report = await explore({ url, actors })
    expect(report).toMatchObject({ schedules: 1, isExhaustive: true, reduction: { off: null } })
    expect(report.summary).toMatch(/^No violation in the only distinguishable schedule \(/)
  })

  it('goes by preemptions', async () => {
    const counts: number[] = []
    for (const preemptions of [0, 1, 2, 3]) {
      const report = await explore({
        url,
        actors: { alice: (db) => insertPair(db, 1), bob: (db) => insertPair(db, 2) },
        bound: { preemptions },
      })
      counts.push(report.schedules)
      expect(report.isExhaustive).toBe(false)
      expect(report.preemptions).toBe(preemptions)
    }
    // Orders of two threes by how often one is left that could go on: 2 × (compositions of both into runs).
    expect(counts).toEqual([2, 6, 14, 18])
  })

  it('goes on in random order when the bound is reached, and reports the probability', async () => {
    const options = {
      url,
      actors: { alice: (db: Pool) => insertPair(db, 1), bob: (db: Pool) => insertPair(db, 2) },
      bound: { schedules: 7, random: 30 },
      everyOrder: true,
      seed: 5,
    }
    const report = await explore(options)
    expect(report).toMatchObject({ isExhaustive: false, preemptions: 1, schedules: 37 })
    // At least 1/(n k^(d-1)) in each run: 2 actors, 6 steps, depth 3.
    const probability = 1 - (1 - 1 / (2 * 36)) ** 30
    expect(report.random).toEqual({ schedules: 30, seed: 5, depth: 3, probability })
    expect(report.summary).toContain(
      'all with at most 1 preemption, and 30 schedules in random order (seed 5:',
    )
    expect(report.summary).not.toContain('in all')
  })

  it('draws the same random orders from the same seed', async () => {
    const orders: string[][] = []
    for (const seed of [7, 7, 8]) {
      const seen: string[] = []
      await explore({
        url,
        actors: { alice: noted(seen, 'a'), bob: noted(seen, 'b') },
        bound: { schedules: 1, random: 20 },
        seed,
      })
      orders.push(seen)
    }
    expect(orders[1]).toEqual(orders[0])
    expect(orders[2]).not.toEqual(orders[0])
  })

  function noted(seen: string[], letter: string) {
    return async (db: Pool) => {
      for (const id of [1, 2, 3]) {
        await db.query(`select ${id} from pair`)
        seen.push(letter)
      }
    }
  }
})

async function insertPair(db: Pool, a: number): Promise<void> {
  const client = await db.connect()
  await client.query('begin')
  await client.query('insert into pair values ($1)', [a])
  await client.query('update pair set b = 1 where a = $1', [a])
  await client.query('commit')
  client.release()
}

describe('one order, by name', () => {
  it('runs, and the actors finish after its end', async () => {
    const right = await explore({ ...lostUpdate, schedule: ['bob', 'bob', 'bob'], throws: false })
    expect(right).toMatchObject({ verdict: 'passed', schedules: 1, isExhaustive: false })
    const wrong = await explore({ ...lostUpdate, schedule: ['bob', 'alice'], throws: false })
    expect(wrong.race?.schedule).toEqual(['bob', 'alice', 'alice', 'alice', 'bob', 'bob'])
  })

  it('that is impossible is refused, with the actors that can go on', async () => {
    const update = (db: Pool) => db.query('update counter set n = n + 1')
    await expect(
      explore({
        url,
        setup: start,
        actors: { alice: update, bob: update },
        schedule: ['alice', 'bob', 'bob'],
      }),
    ).rejects.toMatchObject({
      code: 'DIBS_EXPLORATION',
      reason: 'schedule',
      actor: 'bob',
      message: "Step 3 of the schedule is bob's, who cannot go on there: only alice can.",
    })
    await expect(explore({ ...lostUpdate, schedule: ['eve'] })).rejects.toThrow(
      'eve, who is not among the actors',
    )
  })
})

describe('a replay', () => {
  it('that goes another way names the first difference', async () => {
    const { replay } = await caught(lostUpdate)
    const changed = async (db: Pool) => {
      const { rows } = await db.query('select n from counter where id = $1', [1])
      await db.query('update counter set n = $1', [rows[0].n + 1])
    }
    const error = await explore({ ...lostUpdate, actors: { alice: addOne, bob: changed }, replay }).catch(
      (e: unknown) => e,
    )
    assert.ok(error instanceof ScheduleDivergedError)
    expect(error.step).toBe(3)
    expect(error.found).toContain('bob: update counter set n = $1')
    expect(error.message).toContain('random values or the time in a statement')
  })

  it('of an actor that now has fewer steps names the step too', async () => {
    const { replay } = await caught(lostUpdate)
    const actors = { alice: addOne, bob: (db: Pool) => db.query('select n from counter where id = $1', [1]) }
    await expect(explore({ ...lostUpdate, actors, replay })).rejects.toMatchObject({ step: 3 })
  })

  it('needs a string of these actors', async () => {
    await expect(explore({ ...lostUpdate, replay: 'v1:abz:001122' })).rejects.toThrow(
      'of these actors (alice, bob)',
    )
    await expect(explore({ ...lostUpdate, replay: 'abba' })).rejects.toThrow('"abba"')
  })

  it('does not need the identity of its exploration', async () => {
    const { replay } = await caught(lostUpdate)
    const { report } = await caught({ ...lostUpdate, replay: replay.replace(/@.*/, '') })
    expect(report).toMatchObject({ mode: 'replay' })
  })
})

describe('DIBS_REPLAY', () => {
  let replay: string
  const warnings: string[] = []
  beforeEach(async () => {
    replay = (await caught(lostUpdate)).replay
    vi.stubEnv('DIBS_REPLAY', replay)
    vi.spyOn(console, 'warn').mockImplementation((text) => void warnings.push(text))
  })
  afterEach(() => {
    vi.unstubAllEnvs()
    vi.restoreAllMocks()
    warnings.length = 0
  })

  it('runs that one schedule of the exploration that printed it', async () => {
    expect((await caught(lostUpdate)).report).toMatchObject({ mode: 'replay', schedules: 1 })
    expect(warnings).toEqual([])
  })

  it('says so when that schedule passes', async () => {
    vi.stubEnv('DIBS_REPLAY', (await caught({ ...lostUpdate, name: 'counter', replay })).replay)
    const passes = { ...lostUpdate, name: 'counter', invariant: () => true }
    expect(await explore(passes)).toMatchObject({ mode: 'replay', verdict: 'passed' })
    expect(warnings).toEqual([
      expect.stringMatching(
        /^DIBS_REPLAY=v1:\S+: the exploration "counter" at .*explore\.test\.ts.* ran this/,
      ),
    ])
  })

  const others: [string, Partial<ExploreOptions>][] = [
    ['another setup', { setup: (db) => db.query('insert into counter (id, n) values (1, 0)') }],
    ['another invariant', { invariant: async (db) => (await n(db)) === 2 }],
    ['other actors', { actors: { carol: addOne, dan: addOne } }],
    ['actors that run another function', { actors: { alice: addOne, bob: (db: Pool) => addOne(db) } }],
    ['another isolation level', { isolation: 'read committed' }],
    ['another bound', { bound: { preemptions: 1 } }],
    ['a name', { name: 'another' }],
  ]
  it.each(others)('is ignored by an exploration with %s, which says so', async (_, other) => {
    const { report } = await caught({ ...lostUpdate, ...other })
    expect(report).toMatchObject({ mode: 'search', schedules: 3, notes: [] })
    expect(warnings).toEqual([expect.stringMatching(/^DIBS_REPLAY=v1:\S+ is not for the exploration /)])
  })

  it('is ignored by an exploration with more or fewer actors', async () => {
    const report = await explore({ url, setup: start, actors: { alice: addOne }, invariant: () => true })
    expect(report).toMatchObject({ mode: 'search', isExhaustive: true })
  })

  it('gives way to the option `replay`', async () => {
    vi.stubEnv('DIBS_REPLAY', 'v1:aaabbb:000000000000@000000')
    expect((await caught({ ...lostUpdate, replay })).report).toMatchObject({ mode: 'replay' })
    expect(warnings).toEqual([])
  })

  it('gives way to a full exploration where the code has changed since, with the step that changed', async () => {
    // A function of the same name, as after an edit.
    const mended = {
      addOne: (db: Pool) => db.query('update counter set n = n + 1 where id = $1', [1]),
    }
    const report = await explore({ ...lostUpdate, actors: { alice: mended.addOne, bob: mended.addOne } })
    expect(report).toMatchObject({ mode: 'search', verdict: 'passed', isExhaustive: true, notes: [] })
    expect(warnings).toEqual([
      expect.stringMatching(
        /^DIBS_REPLAY=v1:\S+ no longer fits the exploration at .*, whose steps have changed: it runs in full\.\n.* at step 3\.\n {2}before: bob could go on\n {2}now: /,
      ),
    ])
  })

  it('without an identity counts for every exploration that it fits', async () => {
    vi.stubEnv('DIBS_REPLAY', replay.replace(/@.*/, ''))
    const invariant: ExploreOptions['invariant'] = async (db) => (await n(db)) === 2
    expect((await caught({ ...lostUpdate, invariant })).report).toMatchObject({ mode: 'replay' })
    expect(await explore({ url, setup: start, actors: { alice: addOne } })).toMatchObject({ mode: 'search' })
    expect(warnings).toEqual([expect.stringContaining(' does not fit the exploration at ')])
  })

  it('that is no such string is refused', async () => {
    vi.stubEnv('DIBS_REPLAY', 'abba')
    await expect(explore(lostUpdate)).rejects.toThrow('`DIBS_REPLAY` must be the string of a printout')
  })
})

describe('an actor that fails', () => {
  const fails = {
    url,
    setup: start,
    actors: {
      alice: async (db: Pool) => {
        await addOne(db)
        throw new TypeError('oops')
      },
    },
  }

  it('is a failure of the schedule', async () => {
    const { printout } = await caught(fails)
    expect(printout).toContain('TypeError: alice failed: oops')
  })

  it('unless that error may be', async () => {
    const report = await explore({
      ...fails,
      mayFail: (error, actor) => error instanceof TypeError && actor === 'alice',
    })
    expect(report.verdict).toBe('passed')
  })

  it('is an outcome that the invariant sees', async () => {
    const seen: unknown[] = []
    await explore({
      ...fails,
      mayFail: () => true,
      invariant: (_, outcomes) => void seen.push(outcomes.alice),
    })
    expect(seen).toEqual([{ status: 'rejected', reason: new TypeError('oops') }])
  })

  it('before its first statement is a failure too', async () => {
    const { printout } = await caught({
      url,
      actors: {
        alice: () => {
          throw new Error('too early')
        },
        bob: (db) => db.query('select 1'),
      },
    })
    expect(printout).toContain('Error: alice failed: too early')
  })
})
