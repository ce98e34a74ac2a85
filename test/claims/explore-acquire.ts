import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import { type AcquireClaim, claim } from '../../src/claims/acquire/acquire-claims.js'
import { endAcquired, renewAcquired } from '../../src/claims/acquire/acquire-statements.js'
import {
  AcquireRefusedError,
  BusyError,
  FenceLostError,
  InProgressError,
  LockHeldError,
  SingletonConflictError,
} from '../../src/errors.js'
import type { Tx } from '../../src/postgres/executor.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { type Depth, exploredAcquire, type Process } from './explored-acquire.js'
import { EARLIER, LATER } from './explored-claims.js'

type List = (process: Process) => readonly AcquireClaim<unknown>[]

/** Every race of compound claims that is known, and that must not be one. */
export function describeAcquireSchedules(bound: Depth): void {
  const { asProcess, exploreAll, rowsOf, doneBy, allOrNone, value, reason, isRefused } =
    exploredAcquire(bound)
  const write =
    (by: string) =>
    async (tx: Tx): Promise<string> => {
      await tx.query("insert into done (key, by) values ('k', $1)", [by])
      return by
    }
  const key = (name: string) => claim.once({ scope: 'k', key: name })
  const slot = (name: string) => claim.singleton({ scope: name, per: 'day' })

  // No caller waits for a pending outcome: the time limit of such a wait needs a clock, and the explorer's clock stands still.
  const alone = (by: string, list: List) =>
    asProcess((own) => own.acquire(list(own), { waitMs: 0 }, write(by)))
  const inside = (by: string, list: List) =>
    asProcess((own) => own.transaction((tx) => own.acquire(list(own), { tx, waitMs: 0 }, write(by))))
  const leased = (by: string, list: List) =>
    asProcess((own) =>
      own.acquire(
        list(own),
        {
          ...{ mode: 'leased', leaseMs: 100_000_000, waitMs: 0 },
        },
        async () => write(by)(own.db as unknown as Tx),
      ),
    )
  const ways = [
    ['alone', alone, 1],
    ["in callers' transactions", inside, 0],
    ['leased', leased, 0],
  ] as const

  /** Two that share a slot's neighbour, a quota and a lock, and name them in different orders. */
  const annsList: List = ({ points }) => [claim.lock('x'), points.claim('kid', 4), slot('a'), key('ann')]
  const bobsList: List = ({ points }) => [key('bob'), slot('b'), claim.lock('x'), points.claim('kid', 5)]
  const amounts = { ann: 4, bob: 5, eve: 6 }

  /** At least one gets through; the others are refused by what is passing. */
  async function someAndWhole(db: Pool, outcomes: Readonly<Record<string, Outcome>>): Promise<void> {
    const done = await allOrNone(db, outcomes, amounts)
    assert(done.length > 0, 'nobody got through')
    for (const outcome of Object.values(outcomes)) {
      const error = reason(outcome)
      if (error === undefined) continue
      assert(error instanceof AcquireRefusedError, String(error))
      assert.equal(error.isFinal, false)
    }
  }

  describe.each(ways)('overlapping sets in different orders, %s', (_, acquires, depth) => {
    it('two', async () => {
      await exploreAll({
        actors: { ann: acquires('ann', annsList), bob: acquires('bob', bobsList) },
        mayFail: isRefused,
        invariant: someAndWhole,
        bound: bound(depth),
      })
    })

    it('three, who do not all fit', async () => {
      await exploreAll({
        actors: {
          ann: acquires('ann', ({ points }) => [claim.lock('x'), points.claim('kid', 4)]),
          bob: acquires('bob', ({ points }) => [points.claim('kid', 5), claim.lock('y'), slot('a')]),
          eve: acquires('eve', ({ points }) => [claim.lock('x'), points.claim('kid', 6), claim.lock('y')]),
        },
        mayFail: isRefused,
        invariant: someAndWhole,
        bound: bound(0),
      })
    })

    it('the same key by two: one does it, and both have its answer', async () => {
      const list: List = ({ points }) => [points.claim('kid', 4), key('same')]
      await exploreAll({
        actors: { ann: acquires('ann', list), bob: acquires('bob', list) },
        mayFail: (error) => error instanceof InProgressError,
        invariant: async (db, outcomes) => {
          const [winner, ...others] = await doneBy(db)
          assert.deepEqual(others, [])
          for (const outcome of Object.values(outcomes))
            if (outcome.status === 'fulfilled') assert.equal(outcome.value, winner)
          await allOrNone(db, { [`${winner}`]: outcomes[`${winner}`] as Outcome }, { [`${winner}`]: 4 })
        },
        bound: bound(depth),
      })
    })

    it('one slot, by two keys: one does it, and the other knows so for good, or for now', async () => {
      const list =
        (name: string): List =>
        ({ points }) => [key(name), slot('same'), points.claim('kid', 4)]
      await exploreAll({
        actors: { ann: acquires('ann', list('ann')), bob: acquires('bob', list('bob')) },
        mayFail: isRefused,
        invariant: async (db, outcomes) => {
          const [winner, ...others] = await allOrNone(db, outcomes, { ann: 4, bob: 4 })
          assert.deepEqual(others, [])
          const loser = winner === 'ann' ? 'bob' : 'ann'
          const error = reason(outcomes[loser]) as AcquireRefusedError
          const conflict = error.failures.find(({ kind }) => kind === 'singleton')?.error
          assert(conflict instanceof SingletonConflictError || conflict instanceof BusyError)
          const isFinal = conflict instanceof SingletonConflictError && conflict.state === 'active'
          assert.equal(error.isFinal, isFinal)
          const kept = await rowsOf(
            db,
            `select status from {schema}.claim where scope = 'k' and key = '${loser}'`,
          )
          // The caller lets the error roll its transaction back, and what it has stored with it.
          assert.deepEqual(kept, isFinal && acquires !== inside ? [{ status: 'failed' }] : [])
        },
        bound: bound(depth),
      })
    })
  })

  it.each([
    ['slots', (): AcquireClaim<unknown>[] => [slot('a'), slot('b')]],
    ['locks', (): AcquireClaim<unknown>[] => [claim.lock('x'), claim.lock('y')]],
  ])(
    'two of the same %s in opposite orders: neither waits for the other, and one gets through',
    async (_, list) => {
      await exploreAll({
        actors: { ann: inside('ann', list), bob: inside('bob', () => list().toReversed()) },
        mayFail: isRefused,
        invariant: async (db, outcomes) => {
          assert((await allOrNone(db, outcomes, {})).length > 0, 'nobody got through')
        },
        bound: bound(1),
      })
    },
  )

  it('a refusal beside a success leaves nothing', async () => {
    await exploreAll({
      before: (db, schema) =>
        db.query(`insert into ${schema}.lock values ('y', 0, 'somebody', 1, '${LATER}', '${EARLIER}')`),
      actors: {
        ann: leased('ann', ({ points }) => [points.claim('kid', 4), slot('a'), claim.lock('x')]),
        bob: alone('bob', ({ points }) => [
          key('bob'),
          points.claim('kid', 5),
          claim.lock('x'),
          claim.lock('y'),
        ]),
      },
      mayFail: isRefused,
      invariant: async (db, outcomes) => {
        await db.query('select 1')
        const { ann, bob } = outcomes
        const locks = await rowsOf(db, "select name from {schema}.lock where expires_at > '-infinity'")
        assert.deepEqual(locks, [{ name: 'y' }])
        const failed = (reason(bob) as AcquireRefusedError).failures
        assert(failed.some(({ error }) => error instanceof LockHeldError && error.lock === 'y'))
        assert.deepEqual(await rowsOf(db, "select from {schema}.claim where scope = 'k'"), [])
        const done = ann?.status === 'fulfilled' ? ['ann'] : []
        assert.deepEqual(await doneBy(db), done)
        const used = done.length * 4
        const quotas = await rowsOf(db, 'select used::int, held::int from {schema}.quota')
        assert.deepEqual(quotas, used === 0 ? [] : [{ used, held: 0 }])
      },
      bound: bound(0),
    })
  })

  describe('a holder that is gone', () => {
    /** The rows that a leased call of four claims has left. Its leases have expired, or not. */
    const left = (until: string) => async (db: Pool, schema: string) => {
      await db.query(`
        insert into ${schema}.claim (scope, key, id, holder, fence, lease_until, created_at) values
          ('k', 'same', 'i', 'gone', 100, '${until}', '${EARLIER}'), ('::a', 'day:2026-01-01', 's', 'gone', 100, '${until}', '${EARLIER}');
        insert into ${schema}.lock values ('x', 0, 'gone', 100, '${until}', '${EARLIER}');
        insert into ${schema}.quota (name, subject, starts_at, ends_at, granted_limit, held, holds_until) values
          ('points', 'kid', '-infinity', 'infinity', 10, 6, '${until}');
        insert into ${schema}.quota_entry (name, id, subject, state, requested, amount, starts_at, expires_at, holder, created_at) values
          ('points', 'i:1', 'kid', 'held', 6, 6, '-infinity', '${until}', 'gone', '${EARLIER}')`)
    }
    const grants = (ending: object) =>
      JSON.stringify([
        { kind: 'claim', scope: 'k', key: 'same', fence: 100, keepMs: 1_000_000, ...ending },
        { kind: 'claim', scope: '::a', key: 'day:2026-01-01', fence: 100, keepMs: 1_000_000, ...ending },
        { kind: 'hold', name: 'points', subject: 'kid', id: 'i:1', amount: 6, limit: 10 },
        { kind: 'lock', name: 'x', fence: 100 },
      ])
    const list: List = ({ points }) => [claim.lock('x'), points.claim('kid', 6), key('same'), slot('a')]

    it('is taken over by one of two, and its reservation is charged once', async () => {
      await exploreAll({
        before: left(EARLIER),
        actors: { ann: leased('ann', list), bob: leased('bob', list) },
        mayFail: (error) => error instanceof InProgressError || isRefused(error),
        invariant: async (db, outcomes) => {
          const [winner, ...others] = await doneBy(db)
          assert.deepEqual(others, [])
          assert.equal(value(outcomes[`${winner}`]), winner)
          await allOrNone(db, { [`${winner}`]: outcomes[`${winner}`] as Outcome }, { ann: 6, bob: 6 })
          const attempts = await rowsOf(db, 'select attempt, lost from {schema}.claim')
          assert.deepEqual(attempts, [
            { attempt: 2, lost: 1 },
            { attempt: 2, lost: 1 },
          ])
        },
        bound: bound(1),
      })
    })

    it('leaves a lock to one of two', async () => {
      const lock: List = () => [claim.lock('x')]
      await exploreAll({
        before: (db, schema) =>
          db.query(`insert into ${schema}.lock values ('x', 0, 'gone', 100, '${EARLIER}', '${EARLIER}')`),
        actors: { ann: leased('ann', lock), bob: alone('bob', lock) },
        mayFail: isRefused,
        invariant: async (db, outcomes) => {
          assert((await allOrNone(db, outcomes, {})).length > 0)
          // Each holder has raised the fence, and so has the end of a lease.
          const [row] = await rowsOf(db, 'select fence::float8 from {schema}.lock')
          assert(Number(row?.fence) > 100)
        },
        bound: bound(1),
      })
    })

    it('and wakes up late keeps its lock, or another has it', async () => {
      await exploreAll({
        before: (db, schema) =>
          db.query(`insert into ${schema}.lock values ('x', 0, 'gone', 100, '${EARLIER}', '${EARLIER}')`),
        actors: {
          ann: leased('ann', () => [claim.lock('x')]),
          late: asProcess(async ({ database }) => {
            const grant = JSON.stringify([{ kind: 'lock', name: 'x', fence: 100 }])
            const [row] = await database.send(renewAcquired, [grant, 'gone', '100000000', '60000'])
            return row?.state
          }),
        },
        mayFail: isRefused,
        invariant: async (db, { ann, late }) => {
          const done = ann?.status === 'fulfilled' ? ['ann'] : []
          assert.deepEqual([await doneBy(db), value(late)], [done, done.length === 1 ? 'lost' : 'held'])
        },
        bound: bound(1),
      })
    })

    it.each([
      ['stores all of its outcome', true, { status: 'active', outcome: '"late"' }],
      ['gives all of it back', false, {}],
    ])('and wakes up late %s, or nothing', async (_, isDone, ending) => {
      await exploreAll({
        before: left(EARLIER),
        actors: {
          ann: leased('ann', list),
          late: asProcess(async ({ database }) => {
            const values = [grants(ending), 'gone', String(isDone), '60000', 'false']
            const [row] = await database.send(endAcquired, values)
            return JSON.parse(`${row?.result}`).state
          }),
        },
        mayFail: (error) => error instanceof FenceLostError || isRefused(error),
        invariant: async (db, { ann, late }) => {
          const done = await doneBy(db)
          const outcomes = await rowsOf(
            db,
            'select outcome::text as outcome, status from {schema}.claim order by scope',
          )
          const used = Number((await rowsOf(db, 'select used::int from {schema}.quota'))[0]?.used)
          if (value(late) === 'ended' && isDone) {
            assert.deepEqual([value(ann), done, used], ['late', [], 6])
            assert.deepEqual(
              outcomes.map(({ outcome }) => outcome),
              ['"late"', '"late"'],
            )
          } else if (ann?.status === 'fulfilled') {
            assert.deepEqual([done, used], [['ann'], 6])
            assert.deepEqual(
              outcomes.map(({ outcome }) => outcome),
              ['"ann"', '"ann"'],
            )
          } else assert(isRefused(reason(ann)) && value(late) === 'ended')
          assert.deepEqual(await rowsOf(db, 'select subject from {schema}.quota where held <> 0'), [])
          assert.deepEqual(
            await rowsOf(db, "select name from {schema}.lock where expires_at > '-infinity'"),
            [],
          )
          const entries = await rowsOf(
            db,
            "select sum(amount)::int as sum from {schema}.quota_entry where state = 'taken'",
          )
          assert.equal(entries[0]?.sum ?? 0, used)
        },
        bound: bound(isDone ? 1 : 0),
      })
    })

    it('and wakes up late keeps all of it, or has lost it', async () => {
      await exploreAll({
        before: left(EARLIER),
        actors: {
          ann: leased('ann', list),
          late: asProcess(async ({ database }) => {
            const [row] = await database.send(renewAcquired, [grants({}), 'gone', '100000000', '60000'])
            return row?.state
          }),
        },
        mayFail: (error) => error instanceof InProgressError || isRefused(error),
        invariant: async (db, { ann, late }) => {
          const fences = (
            await rowsOf(
              db,
              'select fence::float8 from {schema}.claim union all select fence::float8 from {schema}.lock',
            )
          ).filter(({ fence }) => fence === 100)
          if (ann?.status === 'fulfilled') assert.deepEqual([await doneBy(db), fences.length], [['ann'], 0])
          else assert.deepEqual([await doneBy(db), fences.length, value(late)], [[], 3, 'held'])
        },
        bound: bound(0),
      })
    })
  })
}
