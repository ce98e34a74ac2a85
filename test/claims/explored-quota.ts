import type { Pool } from 'pg'
import pg from 'pg'
import { afterAll, beforeAll, expect } from 'vitest'
import type { Quota } from '../../src/claims/quota/quota.js'
import type { IfLate } from '../../src/claims/quota/quota-spec.js'
import { Dibs } from '../../src/dibs.js'
import {
  FingerprintMismatchError,
  HoldEndedError,
  InvalidInputError,
  QuotaExceededError,
} from '../../src/errors.js'
import type { Tx } from '../../src/postgres/executor.js'
import type { Isolation } from '../../src/postgres/transaction-types.js'
import { createTestSchema, type ExploreBound } from '../../src/testing/index.js'
import { exploreDibs } from '../explore-dibs.js'
import { exploredSchema } from '../explored-schema.js'
import { type Entry, type QuotaAnswer, QuotaModel } from './quota-model.js'

const NOW = Date.parse('2030-01-01T00:00:00Z')
export const WINDOW_MS = 10_000
const SCHEMA = 'explored_quota'
/** The row of a subject, which maintenance may remove; two days ago. */
export const LONG_AGO = -2 * 86_400_000
const LIMIT = 10

/** The rows at the start of a schedule, all in one window. */
export interface Start {
  readonly window?: number
  readonly entries: readonly Partial<Entry>[]
  /** The row was forgotten; its entries were not. */
  readonly isForgotten?: boolean
}

/** A call, and what it would do and answer if it were alone. */
export interface QuotaCall {
  run(quota: Quota, tx?: Tx): Promise<QuotaAnswer | undefined>
  expect(model: QuotaModel): QuotaAnswer | undefined
  /** True if the call may find nothing to do, because another call does it. */
  readonly mayBeNothing?: boolean
}

const figures = ({ used, held }: { used: number; held: number }) => ({ used, held })

/** The answer in the words of the model. */
async function toAnswer(call: () => Promise<QuotaAnswer>): Promise<QuotaAnswer> {
  try {
    return await call()
  } catch (error) {
    if (error instanceof QuotaExceededError) return ['refused', figures(error), error.retryAfterMs]
    if (error instanceof HoldEndedError) return ['ended', error.state]
    if (error instanceof FingerprintMismatchError) return ['mismatch']
    if (error instanceof InvalidInputError) return ['too much']
    throw error
  }
}

export const take = (amount: number, id?: string, subject = 'ann'): QuotaCall => ({
  run: (quota, tx) =>
    toAnswer(async () => {
      const took = await quota.take(subject, amount, { id, tx })
      return [took.replayed ? 'replayed' : 'taken', figures(took)]
    }),
  expect: (model) => model.take(subject, amount, LIMIT, id),
})

export const reserve = (amount: number, id: string, leaseMs = 1_000): QuotaCall => ({
  run: (quota, tx) =>
    toAnswer(async () => {
      const { leaseUntil: expiresAt } = await quota.reserve('ann', amount, { id, leaseMs, tx })
      return ['reserved', expiresAt.getTime() - NOW]
    }),
  expect: (model) => model.take('ann', amount, LIMIT, id, leaseMs),
})

export const settle = (id: string, actual: number): QuotaCall => ({
  run: (quota, tx) => toAnswer(async () => ['settled', figures(await quota.settle(id, actual, { tx }))]),
  expect: (model) => model.settle(id, actual, LIMIT),
})

export const giveBack = (id: string): QuotaCall => ({
  run: (quota, tx) => toAnswer(() => quota.void(id, { tx }).then(() => ['void'])),
  expect: (model) => model.void(id),
})

export const refund = (id: string, amount?: number): QuotaCall => ({
  run: (quota, tx) =>
    toAnswer(async () => [(await quota.refund(id, { amount, tx })).replayed ? 'already' : 'refunded']),
  expect: (model) => model.refund(id, amount),
})

export interface QuotaCase {
  readonly start: Start
  readonly calls: Readonly<Record<string, QuotaCall>>
  /** Without windows. */
  readonly isStock?: boolean
  readonly ifLate?: IfLate
}

/** How far to look with so many actors. */
export type Depth = (actors: number) => ExploreBound

/** Explores calls of several processes: in every order of their statements they answer and leave what they would one after the other. */
export function quotaScenes(depth: Depth) {
  const { url } = exploredSchema('')
  const pool = new pg.Pool({ connectionString: url })
  pool.on('error', () => {})
  let dibs: Dibs
  let schedules = 0
  beforeAll(async () => {
    const made = await createTestSchema(pool, SCHEMA)
    dibs = await Dibs.open({ pool, schema: SCHEMA, listen: false, maintain: false })
    await made.waits.never()
    // Time is a row, so that moving it is a step like any other.
    await pool.query(`create table ${SCHEMA}.test_time (at timestamptz not null);
      create or replace function ${SCHEMA}.clock() returns timestamptz
      language plpgsql volatile as $$ begin return (select at from ${SCHEMA}.test_time); end $$`)
  })
  afterAll(async () => {
    console.log(`${schedules} schedules`)
    await dibs.close()
    await pool.end()
  })

  const time = (ms: number) => `timestamptz '${new Date(NOW + ms).toISOString()}'`

  /** Moves the clock. */
  const pass = (ms: number): QuotaCall => ({
    async run() {
      await pool.query(`update ${SCHEMA}.test_time set at = ${time(ms)}`)
      return undefined
    },
    expect(model) {
      model.now = ms
      return undefined
    },
  })

  const maintain: QuotaCall = {
    async run() {
      await pool.query(`select ${SCHEMA}.quota_delete_expired(10)`)
      return undefined
    },
    expect(model) {
      model.maintain()
      return undefined
    },
    mayBeNothing: true,
  }

  /** In a transaction of its own, and rolled back if that is said. */
  const joined = (
    call: QuotaCall,
    { isolation, isUndone = false }: { isolation?: Isolation; isUndone?: boolean } = {},
  ): QuotaCall => ({
    async run(quota) {
      const undone = new Error('on purpose')
      let answer: QuotaAnswer | undefined
      await dibs
        .transaction(
          async (tx) => {
            await tx.query('select 1')
            answer = await call.run(quota, tx)
            if (isUndone) throw undone
          },
          isolation ? { isolation } : {},
        )
        .catch((error) => {
          if (error !== undone) throw error
        })
      return isUndone ? undefined : answer
    },
    expect: (model) => (isUndone ? undefined : call.expect(model)),
  })

  function rowsOf({ start: { entries, window = 0, isForgotten }, isStock }: QuotaCase): string {
    const at = isStock ? "'-infinity'" : time(window)
    const sum = (chosen: readonly Entry[]) => chosen.reduce((total, { amount }) => total + amount, 0)
    const all = entries.map((entry) => completed(entry, window))
    const held = all.filter(({ state }) => state === 'held')
    const taken = all.filter(({ state }) => state === 'taken')
    const until = Math.min(...held.map(({ expires }) => expires ?? 0))
    return [
      `insert into ${SCHEMA}.test_time values (${time(0)})`,
      entries.length > 0 && !isForgotten
        ? `insert into ${SCHEMA}.quota (name, subject, starts_at, ends_at, granted_limit, used, held, holds_until, unlisted) values
           ('points', 'ann', ${at}, ${isStock ? "'infinity'" : time(window + WINDOW_MS)}, ${LIMIT}, ${sum(taken)}, ${sum(held)},
            ${held.length > 0 ? time(until) : 'null'}, ${sum(taken.filter(({ id }) => id === undefined))})`
        : 'select 1',
      ...all
        .filter(({ id }) => id !== undefined)
        .map(
          ({ id, state, requested, amount, expires, forget }) => `insert into ${SCHEMA}.quota_entry
           (name, id, subject, state, requested, amount, starts_at, expires_at, created_at, forget_at) values
           ('points', '${id}', 'ann', '${state}', ${requested}, ${amount}, ${at}, ${expires === undefined ? 'null' : time(expires)}, ${time(window)},
            ${forget === Number.POSITIVE_INFINITY ? 'null' : time(forget)})`,
        ),
    ].join(';')
  }

  async function expectAtomic(quotaCase: QuotaCase): Promise<void> {
    const { start, calls, isStock, ifLate = 'take' } = quotaCase
    const per = isStock ? {} : { perMs: WINDOW_MS, from: new Date(NOW) }
    const options = { limit: LIMIT, ifLate, keepMs: Number.POSITIVE_INFINITY, ...per }
    const model = () => {
      const made = new QuotaModel({
        ifLate,
        keepMs: options.keepMs,
        everyMs: isStock ? undefined : WINDOW_MS,
      })
      for (const entry of start.entries) made.add(completed(entry, start.window ?? 0))
      return made
    }
    const report = await exploreDibs({
      pool,
      bound: { random: 0, ...depth(Object.keys(calls).length) },
      setup: (db) => db.query(rowsOf(quotaCase)),
      actors: Object.fromEntries(
        // Each is a process of its own.
        Object.entries(calls).map(([name, call]) => [name, () => call.run(dibs.quota('points', options))]),
      ),
      invariant: async (db, outcomes) => {
        const left = await readState(db, isStock)
        const answered = Object.entries(calls).map(([name, call]) => {
          const outcome = outcomes[name]
          return { call, answer: outcome?.status === 'fulfilled' ? outcome.value : ['failed', outcome] }
        })
        if (!isExplained(answered, model, [], left)) {
          const answers = answered.map(({ answer }) => answer)
          throw new Error(`no order explains ${JSON.stringify({ answers, left })}`)
        }
        const { rows } = await db.query(`select q.*, e.* from ${SCHEMA}.quota q, lateral (
            select coalesce(sum(x.amount) filter (where x.state in ('taken', 'refunded')), 0) as taken,
              coalesce(sum(x.requested) filter (where x.state = 'held'), 0) as reserved
            from ${SCHEMA}.quota_entry x where x.subject = q.subject and x.starts_at = q.starts_at) e
          where q.used + q.overdrawn - q.unlisted <> e.taken or q.held <> e.reserved`)
        if (rows.length > 0) throw new Error(`counters and entries differ: ${JSON.stringify(rows)}`)
      },
    })
    schedules += report.schedules
    expect(report.isComplete, report.summary).toBe(true)
    expect(report.notes.filter((note) => !known.test(note))).toEqual([])
  }

  return { expectAtomic, joined, maintain, pass }
}

/** Functions of one statement have no place for a point. */
const known =
  /is the server's choice|seen in one order only|(?:clock|first_instant|quota_peek|quota_free_at|quota_take_joined|quota_resolve_joined)\(.*\) runs as one step/

const completed = (entry: Partial<Entry>, window: number): Entry => ({
  ...{ id: undefined, subject: 'ann', amount: 1, expires: undefined, forget: Number.POSITIVE_INFINITY },
  ...{ state: entry.expires === undefined ? 'taken' : 'held', window },
  requested: entry.amount ?? 1,
  ...entry,
})

async function readState(db: Pool, isStock: boolean | undefined): Promise<unknown> {
  const per = isStock ? null : JSON.stringify({ everyUs: WINDOW_MS * 1_000, fromUs: NOW * 1_000 })
  const { rows } = await db.query(
    `select ${SCHEMA}.quota_peek('points', s, $1) as answer from unnest(array['ann', 'bob']) s`,
    [per],
  )
  return rows.map(({ answer }) => figures(answer))
}

/** Some order of these calls, one after the other, in which each answers what it did answer, and leaves what is left. */
function isExplained(
  calls: readonly { readonly call: QuotaCall; readonly answer: unknown }[],
  fresh: () => QuotaModel,
  done: readonly QuotaCall[],
  left: unknown,
): boolean {
  const replay = () => {
    const model = fresh()
    for (const call of done) call.expect(model)
    return model
  }
  if (calls.length === 0) {
    const model = replay()
    return JSON.stringify(['ann', 'bob'].map((name) => model.use(name))) === JSON.stringify(left)
  }
  return calls.some(({ call, answer }, n) => {
    const others = calls.toSpliced(n, 1)
    if (call.mayBeNothing && isExplained(others, fresh, done, left)) return true
    return (
      JSON.stringify(call.expect(replay())) === JSON.stringify(answer) &&
      isExplained(others, fresh, [...done, call], left)
    )
  })
}
