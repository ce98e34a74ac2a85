import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { exploreDibs } from '../../../test/explore-dibs.js'
import { exploredSchema } from '../../../test/explored-schema.js'
import { Dibs } from '../../dibs.js'
import { createTestSchema, type ExploreBound, type TestSchema } from '../../testing/index.js'
import type { RateAlgorithm, RateLimitOptions } from './rate-spec.js'

const { url } = exploredSchema('')
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
const schema = 'explored_rate'
let made: TestSchema
let dibs: Dibs

/** Where the clock stands; a whole number of periods since 1970. */
const NOW = '2030-01-01T00:00:00Z'
const NOW_US = Date.parse(NOW) * 1_000
const LIMIT = 2

beforeAll(async () => {
  made = await createTestSchema(pool, schema)
  dibs = await Dibs.open({ pool, schema, listen: false })
  // Steps must not depend on how long they take.
  await made.clock.freeze(new Date(NOW))
  await made.waits.never()
})
afterAll(async () => {
  await dibs.close()
  await pool.end()
})

interface RateCase {
  readonly algorithm: RateAlgorithm
  /** Usage before the calls: recent, or so old that it counts as unused. Undefined: no row yet. */
  readonly used?: { readonly cost: number; readonly isOver?: boolean }
  readonly costs: Readonly<Record<string, number>>
  readonly beside?: Readonly<Record<string, () => unknown>>
  /** How each takes: alone, in a transaction, or by the function that waits for nobody. */
  readonly take?: (cost: number) => Promise<unknown>
  readonly bound?: ExploreBound
}

/** Each is a process of its own: within one, calls for a subject go together. */
const alone = (options: RateLimitOptions) => (cost: number) => dibs.rateLimit('r', options).tryTake('s', cost)

/** In every order, what is granted fits, and what is refused would not have; and that is what is stored. */
async function expectExact({ algorithm, used, costs, beside = {}, take, bound }: RateCase): Promise<void> {
  const options = { algorithm, limit: LIMIT, perMs: 1_000, burst: algorithm === 'gcra' ? LIMIT : undefined }
  const unit = 1_000_000
  const run = take ?? alone(options)
  const report = await exploreDibs({
    pool,
    bound: { random: 0, ...bound },
    setup: async (db) => {
      if (!used) return
      const at = used.isOver ? NOW_US - 10_000_000 : NOW_US
      await db.query(`insert into ${schema}.rate values ('r', 's', $1, $2, $3, 0, $4)`, [
        `${algorithm}:1000`,
        at,
        used.cost * unit,
        used.isOver ? '2029-01-01' : '2031-01-01',
      ])
    },
    actors: {
      ...Object.fromEntries(Object.entries(costs).map(([name, cost]) => [name, () => run(cost)])),
      ...beside,
    },
    invariant: async (db, outcomes) => {
      const before = used && !used.isOver ? used.cost : 0
      let taken = 0
      let least = Number.POSITIVE_INFINITY
      for (const [name, cost] of Object.entries(costs)) {
        const outcome = outcomes[name]
        if (outcome?.status !== 'fulfilled') throw new Error(`${name} failed`, { cause: outcome?.reason })
        // `tryTake` says `ok`, the SQL function `granted`.
        const { ok, granted } = outcome.value as { ok?: boolean; granted?: boolean }
        if (ok ?? granted) taken += cost
        else least = Math.min(least, cost)
      }
      const { rows } = await db.query(`select level from ${schema}.rate`)
      const story = JSON.stringify({ before, taken, least, rows })
      if (before + taken > LIMIT) throw new Error(`more granted than fits: ${story}`)
      if (before + taken + least <= LIMIT) throw new Error(`refused what fits: ${story}`)
      if (taken > 0 && Number(rows[0]?.level) !== (before + taken) * unit) throw new Error(`lost: ${story}`)
    },
  })
  expect(report.isComplete).toBe(true)
  // Whom of several that wait for one row the server lets go first is not the explorer's to choose.
  expect(report.notes.filter((note) => !known.test(note))).toEqual([])
}

/** A function that touches no table has no place for a point. */
const known = /is the server's choice|(?:rate_decide|rate_take_joined)\(.*\) runs as one step/

const algorithms = ['gcra', 'token-bucket', 'fixed-window', 'sliding-window'] as const
const forget = () => pool.query(`select ${schema}.rate_delete_expired(10)`)
/** All orders in which somebody is left so often though they could go on. */
const one = { preemptions: 1 }
const two = { preemptions: 2 }

describe.each(algorithms)('%s', (algorithm) => {
  it('a subject at the edge, of two', () =>
    expectExact({ algorithm, used: { cost: 1 }, costs: { ann: 1, bob: 1 } }))
})

it.each(['gcra', 'sliding-window'] as const)('%s: a subject that is new, of two', (algorithm) =>
  expectExact({ algorithm, costs: { ann: 2, bob: 1 } }),
)

describe('of three', () => {
  it('a subject that is new', () =>
    expectExact({ algorithm: 'gcra', costs: { ann: 1, bob: 1, eve: 1 }, bound: one }))

  it('a subject at the edge', () =>
    expectExact({
      algorithm: 'token-bucket',
      used: { cost: 1 },
      costs: { ann: 1, bob: 1, eve: 1 },
    }))
})

describe('beside maintenance', () => {
  it('a subject that is forgotten meanwhile, of two', () =>
    expectExact({
      algorithm: 'fixed-window',
      used: { cost: 2, isOver: true },
      costs: { ann: 1, bob: 2 },
      beside: { maintenance: forget },
      bound: one,
    }))

  it('a subject that is forgotten meanwhile, of one', () =>
    expectExact({
      algorithm: 'gcra',
      used: { cost: 2, isOver: true },
      costs: { ann: 2 },
      beside: { maintenance: forget },
    }))
})

describe.each(['read committed', 'serializable'] as const)('in transactions at %s', (isolation) => {
  it.each([
    ['a subject that is new', undefined],
    ['a subject at the edge', { cost: 1 }],
  ])('%s', (_, used) =>
    expectExact({
      algorithm: 'token-bucket',
      used,
      costs: { ann: 1, bob: 2 },
      bound: one,
      take: (cost) =>
        dibs.transaction(
          (tx) =>
            dibs
              .rateLimit('r', { algorithm: 'token-bucket', limit: LIMIT, perMs: 1_000 })
              .tryTake('s', cost, { tx }),
          { isolation },
        ),
    }),
  )
})

describe('who waits for nobody', () => {
  const atOnce = async (cost: number) => {
    const { rows } = await pool.query(
      `select ${schema}.rate_take('r', 's', 'token-bucket:1000', 'token-bucket', ${LIMIT}, 1000000, ${LIMIT}, $1, 0) as told`,
      [`{${cost}}`],
    )
    return rows[0].told
  }

  it.each([[undefined], [{ cost: 1 }]])('is told, or is busy: %j', async (used) => {
    let busy = 0
    const report = await exploreDibs({
      pool,
      bound: { random: 0, ...two },
      setup: async (db) => {
        if (!used) return
        await db.query(
          `insert into ${schema}.rate values ('r', 's', 'token-bucket:1000', ${NOW_US}, 1000000, 0, '2031-01-01')`,
        )
      },
      actors: { ann: () => atOnce(2 - (used?.cost ?? 0)), bob: () => atOnce(2 - (used?.cost ?? 0)) },
      invariant: async (_, outcomes) => {
        const told = Object.values(outcomes).map((outcome) => {
          if (outcome.status !== 'fulfilled') throw new Error('failed', { cause: outcome.reason })
          const answer = outcome.value as { state?: string; 0?: { granted: boolean } }
          return answer.state ?? (answer[0]?.granted ? 'granted' : 'refused')
        })
        if (told.includes('busy')) busy++
        if (told.filter((state) => state === 'granted').length !== 1) throw new Error(`${told}`)
      },
    })
    expect(report.isComplete).toBe(true)
    expect(report.notes.filter((note) => !known.test(note))).toEqual([])
    expect(busy).toBeGreaterThan(0)
  })
})
