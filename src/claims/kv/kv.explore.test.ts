import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { isDeep, itInDepth } from '../../../test/depth.js'
import { exploreDibs } from '../../../test/explore-dibs.js'
import { exploredSchema } from '../../../test/explored-schema.js'
import {
  claim,
  drop,
  dropFirst,
  isExplained,
  joined,
  KEY,
  type KvCall,
  type KvFields,
  patch,
  put,
  read,
  remake,
  swap,
} from '../../../test/kv-model.js'
import { Dibs } from '../../dibs.js'
import { createTestSchema, type ExploreBound } from '../../testing/index.js'

const { url } = exploredSchema('')
const pool = new pg.Pool({ connectionString: url })
pool.on('error', () => {})
const schema = 'explored_kv'
let dibs: Dibs

beforeAll(async () => {
  const made = await createTestSchema(pool, schema)
  dibs = await Dibs.open({ pool, schema, listen: false })
  // Steps must not depend on how long they take. Versions are then one after the other.
  await made.clock.freeze(new Date('2030-01-01T00:00:00Z'))
})
afterAll(async () => {
  await dibs.close()
  await pool.end()
})

const FIRST = 1
const first: KvFields = { by: 'first', checks: {} }
const starts = {
  missing: undefined,
  live: 'null',
  // A value that expired a year ago.
  expired: "'2029-01-01'",
}

interface KvCase {
  readonly start: keyof typeof starts
  readonly calls: Readonly<Record<string, KvCall>>
  /** Calls that answer nothing that depends on the others, and change nothing that these can see. */
  readonly beside?: Readonly<Record<string, () => unknown>>
  readonly bound?: ExploreBound
}

/** In every order of their statements, the calls answer and leave what they would one after the other. */
async function expectAtomic({ start, calls, beside = {}, bound }: KvCase): Promise<void> {
  const isLive = start === 'live'
  const report = await exploreDibs({
    pool,
    bound: { random: 0, ...bound },
    setup: async (db) => {
      if (start === 'missing') return
      await db.query(
        `insert into ${schema}.kv values ($1, $2, ${FIRST}, ${starts[start]}, '2028-01-01', '2028-01-01')`,
        [KEY, first],
      )
    },
    actors: {
      ...Object.fromEntries(
        Object.entries(calls).map(([name, call]) => [name, () => call.run(dibs.kv, FIRST)]),
      ),
      ...beside,
    },
    invariant: async (db, outcomes) => {
      const { rows } = await db.query(
        `select value from ${schema}.kv where expires_at is null or expires_at > '2030-01-01'`,
      )
      const told = Object.entries(calls).map(([name, call]) => {
        const outcome = outcomes[name]
        return { call, answer: outcome?.status === 'fulfilled' ? outcome.value : 'failed' }
      })
      if (!isExplained(told, { value: isLive ? first : undefined, isFirst: isLive }, rows[0]?.value)) {
        const answers = told.map(({ answer }) => answer)
        throw new Error(`no order explains ${JSON.stringify({ answers, left: rows })}`)
      }
    },
  })
  expect(report.isComplete).toBe(true)
  if (bound?.preemptions !== undefined) expect([null, bound.preemptions]).toContain(report.preemptions)
  // Whom of several that wait for one row the server lets go first is not the explorer's to choose.
  else expect(report.isExhaustive || report.notes.some((note) => note.includes("server's choice"))).toBe(true)
  expect(report.notes.filter((note) => !known.test(note))).toEqual([])
}

/** Functions of one statement, or of none, have no place for a point. */
const known = /is the server's choice|kv_(?:merge|remove_paths|delete_expired)\(.*\) runs as one step/

/** For three, all orders in which somebody is left so often though they could go on. */
const one = { preemptions: 1 }
const two = { preemptions: 2 }

const forget = () => pool.query(`select ${schema}.kv_delete_expired(10)`)

describe('a key that is not there', () => {
  it('is claimed by one of two', () =>
    expectAtomic({ start: 'missing', calls: { ann: claim('ann'), bob: claim('bob') } }))

  itInDepth('is claimed by one of three', () =>
    expectAtomic({ start: 'missing', calls: { ann: claim('ann'), bob: claim('bob'), eve: claim('eve') } }),
  )

  itInDepth('is claimed by one, against set and delete', () =>
    expectAtomic({ start: 'missing', calls: { ann: claim('ann'), bob: put('bob'), eve: drop }, bound: two }),
  )
})

describe('a key that has expired', () => {
  it('is claimed by one of two', () =>
    expectAtomic({ start: 'expired', calls: { ann: claim('ann'), bob: claim('bob') } }))

  itInDepth('is claimed by one of three', () =>
    expectAtomic({
      start: 'expired',
      calls: { ann: claim('ann'), bob: claim('bob'), eve: claim('eve') },
      bound: one,
    }),
  )

  it.each([
    ['compareAndSet', swap('bob')],
    ['delete', drop],
    ['patch', patch('risk')],
    ['set', put('bob')],
  ])('is absent for %s', (_, call) =>
    expectAtomic({ start: 'expired', calls: { ann: claim('ann'), bob: call } }),
  )

  it('is claimed by one of two, against maintenance', () =>
    expectAtomic({
      start: 'expired',
      calls: { ann: claim('ann'), bob: claim('bob') },
      beside: { maintenance: forget },
      bound: one,
    }))

  it('is set, against maintenance', () =>
    expectAtomic({ start: 'expired', calls: { ann: put('ann') }, beside: { maintenance: forget } }))
})

describe('a key that is there', () => {
  itInDepth('is claimed by one of two after it was deleted, or not', () =>
    expectAtomic({ start: 'live', calls: { ann: claim('ann'), bob: claim('bob'), eve: drop }, bound: two }),
  )

  itInDepth('is written once from the same version, of three', () =>
    expectAtomic({ start: 'live', calls: { ann: swap('ann'), bob: swap('bob'), eve: swap('eve') } }),
  )

  it('is deleted or written from the same version, not both: delete by version', () =>
    expectAtomic({ start: 'live', calls: { ann: swap('ann'), bob: dropFirst } }))

  itInDepth('keeps patches of three fields of one object', () =>
    expectAtomic({
      start: 'live',
      calls: { risk: patch('risk'), fraud: patch('fraud'), tax: patch('tax') },
    }),
  )

  const kinds = { setIfAbsent: claim, set: put, compareAndSet: swap, patch, delete: () => drop }
  const names = Object.keys(kinds) as (keyof typeof kinds)[]
  const pairs = names.flatMap((one, n) => names.slice(n).map((other) => [one, other] as const))
  it.each(pairs)('takes %s against %s', (one, other) =>
    expectAtomic({ start: 'live', calls: { ann: kinds[one]('ann'), bob: kinds[other]('bob') } }),
  )
})

describe('a key that is deleted and made again in one transaction', () => {
  it.each([
    ['patch', patch('risk')],
    ['delete', drop],
    ['set', put('bob')],
    ['setIfAbsent', claim('bob')],
    ['compareAndSet', swap('bob')],
    ['get', read],
  ])('is never away for %s', (_, call) =>
    expectAtomic({ start: 'live', calls: { ann: remake(dibs, 'ann'), bob: call } }),
  )
})

const levels = isDeep ? (['repeatable read', 'serializable'] as const) : (['repeatable read'] as const)
describe.each(levels)('in transactions at %s', (isolation) => {
  it.each([
    ['is claimed by one of two where it was missing', 'missing', claim('ann'), claim('bob'), {}],
    ['is claimed by one of two where it had expired', 'expired', claim('ann'), claim('bob'), two],
    ['is claimed after it was deleted, or not', 'live', claim('ann'), drop, {}],
    ['is written once from the same version', 'live', swap('ann'), swap('bob'), {}],
    ['keeps two patches', 'live', patch('risk'), patch('fraud'), {}],
  ] as const)('%s', (_, start, ours, theirs, bound) =>
    expectAtomic({
      start,
      calls: { ann: joined(dibs, ours, isolation), bob: joined(dibs, theirs, isolation) },
      bound,
    }),
  )
})
