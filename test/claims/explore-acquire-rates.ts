import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import { type AcquireClaim, claim } from '../../src/claims/acquire/acquire-claims.js'
import { RateLimit } from '../../src/claims/rate-limit/rate-limit.js'
import type { Tx } from '../../src/postgres/executor.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { type Depth, exploredAcquire, type Process } from './explored-acquire.js'
import { EARLIER, LATER, NOW } from './explored-claims.js'

type List = (process: Process) => readonly AcquireClaim<unknown>[]

const LIMIT = 5
const DAY_MS = 86_400_000

/** Rate limits among compound claims, and beside those who take alone. */
export function describeRateSchedules(bound: Depth, { hasTime = false } = {}): void {
  const { asProcess, exploreAll, rowsOf, allOrNone, value, reason, isRefused } = exploredAcquire(bound)
  const api = ({ database }: Process) =>
    new RateLimit(database, 'api', { algorithm: 'fixed-window', limit: LIMIT, perMs: DAY_MS })
  const write =
    (by: string) =>
    async (tx: Tx): Promise<string> => {
      await tx.query("insert into done (key, by) values ('k', $1)", [by])
      return by
    }
  const inside = (by: string, list: List) =>
    asProcess((own) => own.transaction((tx) => own.acquire(list(own), { tx, waitMs: 0 }, write(by))))
  const leased = (list: List, work: () => Promise<unknown>) =>
    asProcess((own) => own.acquire(list(own), { mode: 'leased', leaseMs: 100_000_000, waitMs: 0 }, work))
  const takes = (cost: number) => asProcess(async (own) => (await api(own).tryTake('tenant', cost)).ok)

  /** Sets the amount that is taken in the current window. */
  const has =
    (cost: number, subject = 'tenant') =>
    (db: Pool, schema: string) =>
      db.query(`
      insert into ${schema}.rate values
        ('api', '${subject}', 'fixed-window:${DAY_MS}', ${Date.parse(NOW) * 1_000}, ${cost * DAY_MS * 1_000}, 0, '${LATER}')`)
  async function takenOf(db: Pool, subject = 'tenant'): Promise<number> {
    const [row] = await rowsOf(
      db,
      `select (level / ${DAY_MS * 1_000})::int as taken from {schema}.rate where subject = '${subject}'`,
    )
    const taken = Number(row?.taken ?? 0)
    assert(taken <= LIMIT, `${taken} taken`)
    return taken
  }
  const isDone = (outcome: Outcome | undefined) => outcome?.status === 'fulfilled'

  describe.each([
    ['new', undefined],
    ['at its edge', has(1)],
  ])('a subject that is %s', (_, before) => {
    const beforehand = before ? 1 : 0

    it.skipIf(before && !hasTime)(
      'overlapping sets in different orders: neither waits for the other, and who is refused has taken nothing',
      async () => {
        await exploreAll({
          ...(before ? { before } : {}),
          actors: {
            ann: inside('ann', (own) => [api(own).claim('tenant', 2), own.points.claim('kid', 4)]),
            bob: inside('bob', (own) => [claim.lock('x'), api(own).claim('tenant', 3)]),
          },
          mayFail: isRefused,
          invariant: async (db, outcomes) => {
            const done = await allOrNone(db, outcomes, { ann: 4 })
            assert(done.length > 0, 'nobody got through')
            const taken = (isDone(outcomes.ann) ? 2 : 0) + (isDone(outcomes.bob) ? 3 : 0)
            assert.equal(await takenOf(db), beforehand + taken)
          },
          bound: bound(1),
        })
      },
    )

    it.skipIf(!before && !hasTime)('beside a take alone', async () => {
      await exploreAll({
        ...(before ? { before } : {}),
        actors: {
          ann: inside('ann', (own) => [api(own).claim('tenant', 3), claim.once({ scope: 'k', key: 'ann' })]),
          bob: takes(3),
        },
        mayFail: isRefused,
        invariant: async (db, { ann, bob }) => {
          await allOrNone(db, { ann: ann as Outcome }, {})
          const taken = [isDone(ann), value(bob)].filter((is) => is)
          assert.equal(taken.length, 1)
          assert.equal(await takenOf(db), beforehand + 3)
        },
        bound: bound(1),
      })
    })
  })

  it('is not waited for: a transaction that takes two in the opposite order is in no circle', async () => {
    await exploreAll({
      before: async (db, schema) => {
        await has(1, 'a')(db, schema)
        await has(1, 'b')(db, schema)
      },
      actors: {
        ann: inside('ann', (own) => [api(own).claim('b', 2), api(own).claim('a', 2)]),
        bob: asProcess((own) =>
          own.transaction(async (tx) => {
            await api(own).take('b', 1, { tx })
            await own.acquire([api(own).claim('a', 1)], { tx, waitMs: 0 }, write('bob'))
          }),
        ),
      },
      mayFail: isRefused,
      invariant: async (db, outcomes) => {
        await allOrNone(db, outcomes, {})
        const taken = 1 + (isDone(outcomes.ann) ? 2 : 0) + (isDone(outcomes.bob) ? 1 : 0)
        assert.deepEqual([await takenOf(db, 'a'), await takenOf(db, 'b')], [taken, taken])
      },
      bound: bound(1),
    })
  })

  it('is given back with a failure that is stored, before anybody sees it', async () => {
    const failed = new Error('on purpose')
    const key = claim.once({ scope: 'k', key: 'ann', isTerminal: () => true })
    await exploreAll({
      before: has(1),
      actors: {
        ann: asProcess((own) =>
          own.acquire([api(own).claim('tenant', 3), key], { waitMs: 0 }, () => Promise.reject(failed)),
        ),
        bob: takes(4),
      },
      mayFail: (error) => error === failed || isRefused(error),
      invariant: async (db, { ann, bob }) => {
        assert.deepEqual([value(bob), await takenOf(db)], [true, 5])
        const kept = await rowsOf(db, "select status from {schema}.claim where scope = 'k'")
        assert.deepEqual(kept, reason(ann) === failed ? [{ status: 'failed' }] : [])
      },
      bound: bound(1),
    })
  })

  it('what another claim refuses has taken nothing, and is in nobody’s way', async () => {
    await exploreAll({
      before: async (db, schema) => {
        await has(1)(db, schema)
        await db.query(`insert into ${schema}.lock values ('y', 0, 'somebody', 1, '${LATER}', '${EARLIER}')`)
      },
      actors: {
        ann: inside('ann', (own) => [claim.lock('y'), api(own).claim('tenant', 2)]),
        bob: takes(4),
      },
      mayFail: isRefused,
      invariant: async (db, { ann, bob }) => {
        assert(isRefused(reason(ann)))
        assert.deepEqual([value(bob), await takenOf(db)], [true, 5])
      },
      bound: bound(1),
    })
  })

  it('under a lease the attempt counts, also if it fails; if it is refused it does not', async () => {
    const failed = new Error('on purpose')
    await exploreAll({
      before: has(1),
      actors: {
        ann: leased(
          (own) => [own.points.claim('kid', 4), api(own).claim('tenant', 2)],
          async () => {
            throw failed
          },
        ),
        bob: takes(3),
      },
      mayFail: (error) => error === failed || isRefused(error),
      invariant: async (db, { ann, bob }) => {
        const counts = reason(ann) === failed
        assert.notEqual(counts, value(bob))
        assert.equal(await takenOf(db), 1 + (counts ? 2 : 3))
        const held = await rowsOf(db, 'select from {schema}.quota where used + held > 0')
        assert.deepEqual(held, [])
      },
      bound: bound(1),
    })
  })
}
