import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import { endAcquired, endHold, renewAcquired } from '../../src/claims/acquire/acquire-statements.js'
import { Quota } from '../../src/claims/quota/quota.js'
import { forgetQuotas, verifyQuota } from '../../src/claims/quota/quota-statements.js'
import { HoldEndedError, InProgressError, QuotaExceededError } from '../../src/errors.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { type Depth, exploredAcquire, type Process } from './explored-acquire.js'
import { EARLIER, LATER } from './explored-claims.js'

/** The amounts that are reserved and used at the start, of ten. */
const HELD = 4
const USED = 1

interface Start {
  /** When the reservation runs out. */
  readonly until: string
  /** When its row says that. Default: the same. */
  readonly rowUntil?: string
  /** True once a caller has found the reservation expired. */
  readonly isFound?: boolean
  /** Its work is done, and somebody had the counter. */
  readonly isDone?: boolean
  /** Its id may be forgotten. */
  readonly isOld?: boolean
}

interface End {
  readonly state: string
}

/**
 * Every race of a reservation under a lease that is known, and that must not be one: how it ends, is renewed, and runs out; some only
 * where there is time for them.
 */
export function describeHoldSchedules(bound: Depth, { hasTime = false } = {}): void {
  const atLeisure = it.skipIf(!hasTime)
  const { fixture, asProcess, exploreAll, rowsOf, value, isRefused } = exploredAcquire(bound)

  /** A call of ann's has a key and a reservation. The lease of the key lasts. */
  const left =
    ({ until, rowUntil = until, isFound = false, isDone = false, isOld = false }: Start) =>
    (db: Pool, schema: string) =>
      db.query(`
        insert into ${schema}.claim (scope, key, id, holder, fence, lease_until, created_at) values
          ('k', 'same', 'i', 'ann', 100, '${LATER}', '${EARLIER}');
        insert into ${schema}.quota (name, subject, starts_at, ends_at, granted_limit, used, unlisted, held, holds_until) values
          ('points', 'kid', '-infinity', 'infinity', 10, ${USED}, ${USED}, ${isFound ? 0 : HELD}, ${isFound ? 'null' : `'${rowUntil}'`});
        insert into ${schema}.quota_entry
          (name, id, subject, state, requested, amount, starts_at, expires_at, holder, is_done, created_at, forget_at) values
          ('points', 'h', 'kid', '${isFound ? 'expired' : 'held'}', ${HELD}, ${isFound ? 0 : HELD}, '-infinity', '${until}', 'ann',
           ${isDone}, '${EARLIER}', ${isOld ? `'${EARLIER}'` : 'null'})`)
  const live = { until: LATER }
  const runOut = { until: EARLIER }
  const found = { ...runOut, isFound: true }

  const points = ({ database }: Process) => new Quota(database, 'points', { limit: 10 })
  const reservation = { kind: 'hold', name: 'points', subject: 'kid', id: 'h', amount: HELD, limit: 10 }
  const key = { kind: 'claim', scope: 'k', key: 'same', fence: 100, keepMs: 1_000_000 }

  const ends = (isDone: boolean, grants: readonly object[] = [key, reservation]) =>
    asProcess(async ({ database }): Promise<End> => {
      const told = grants.map((one) =>
        one === key && isDone ? { ...key, status: 'active', outcome: '"done"' } : one,
      )
      const values = [JSON.stringify(told), 'ann', String(isDone), '60000', 'false']
      const [row] = await database.send(endAcquired, values)
      const { state, unsettled } = JSON.parse(`${row?.result}`)
      const later: unknown[] = []
      // HeldClaims does the same.
      for (const hold of unsettled ?? []) {
        const [settled] = await database.send(endHold, [JSON.stringify(hold), 'ann', '60000'])
        later.push(settled?.state)
      }
      return { state: later.includes('lost') && !grants.includes(key) ? 'lost' : state }
    })
  const renews = asProcess(async ({ database }) => {
    const values = [JSON.stringify([key, reservation]), 'ann', '100000000', '60000']
    const [row] = await database.send(renewAcquired, values)
    return row?.state
  })
  const takes = (amount: number) => asProcess((own) => points(own).take('kid', amount))
  /** A transaction that has the counter for as long as it likes. */
  const joins = (amount: number) =>
    asProcess((own) => own.transaction((tx) => points(own).take('kid', amount, { tx })))
  const inTurn =
    (...calls: readonly ((db: Pool) => Promise<unknown>)[]) =>
    async (db: Pool) => {
      for (const call of calls) await call(db)
    }
  const forgets = asProcess(async ({ database }) => {
    const [row] = await database.send(forgetQuotas, ['10'])
    return Number(row?.count)
  })
  /** Another call with the same id of the caller's. */
  const repeats = asProcess((own) =>
    own.acquire(
      [points(own).claim('kid', HELD, { id: 'h' })],
      { mode: 'leased', leaseMs: 100_000_000, waitMs: 0 },
      async (_, [use]) => (use.replayed ? 'was used' : 'used'),
    ),
  )

  const isFull = (error: unknown) => error instanceof QuotaExceededError
  const isTaken = (outcome: Outcome | undefined) => outcome?.status === 'fulfilled'
  const isKeyStored = async (db: Pool) => {
    const [claim] = await rowsOf(db, "select status, outcome::text from {schema}.claim where scope = 'k'")
    return claim?.status === 'active' && claim.outcome === '"done"'
  }

  /** Reads the used amount once all leases have expired, and rolls that back. */
  async function usedInTheEnd(db: Pool): Promise<number> {
    const { name } = fixture.schema
    const verify = {
      text: verifyQuota.text.replaceAll('{schema}', name),
      values: ['points', null, null, '1001'],
    }
    const client = await db.connect()
    try {
      await client.query('begin read write')
      assert.deepEqual((await client.query(verify)).rows, [])
      await client.query("select setval('public.tick', 1000000000)")
      await client.query(`select ${name}.quota_take('points', 'kid', 10, null, '{}', null, null, null, null)`)
      assert.deepEqual((await client.query(verify)).rows, [])
      const { rows } = await client.query(
        `select (used + overdrawn)::int as used, held::int from ${name}.quota`,
      )
      assert.equal(rows[0].held, 0)
      return rows[0].used
    } finally {
      await client.query('rollback')
      client.release()
    }
  }

  /** The outcome is stored; what is done is charged once, and what has failed is not. */
  async function expectEnded(db: Pool, outcome: Outcome | undefined, isDone: boolean, others: number) {
    assert.equal((value(outcome) as End).state, 'ended')
    assert.equal(await isKeyStored(db), isDone)
    assert.equal(await usedInTheEnd(db), USED + others + (isDone ? HELD : 0))
  }

  const inFront = [
    ['done, lasts, and others have the counter', true, live, joins(2), 2],
    ['done, has run out, and others have the counter', true, runOut, joins(8), 8],
    ['done, was found run out, and others have the counter', true, found, joins(8), 8],
  ] as const
  const behind = [
    ['failed, lasts, and others have the counter', false, live, joins(2), 2],
    ['done, has run out, which another finds', true, runOut, takes(8), 8],
    ['failed, has run out, and others have the counter', false, runOut, joins(8), 8],
    ['failed, was found run out, and others have the counter', false, found, joins(8), 8],
    ['failed, has run out, which another finds', false, runOut, takes(8), 8],
  ] as const
  it.each([...inFront, ...(hasTime ? behind : [])])(
    'ends as it should: %s',
    async (_, isDone, start, bob, amount) => {
      await exploreAll({
        before: left(start),
        actors: { ann: ends(isDone), bob },
        mayFail: isFull,
        invariant: (db, outcomes) =>
          expectEnded(db, outcomes.ann, isDone, isTaken(outcomes.bob) ? amount : 0),
        bound: bound(1),
      })
    },
  )

  it('what has failed is settled by hand, or is not', async () => {
    await exploreAll({
      before: left(live),
      actors: { ann: ends(false), bob: asProcess((own) => points(own).settle('h', HELD)) },
      mayFail: (error) => error instanceof HoldEndedError || error instanceof InProgressError,
      invariant: async (db, { ann, bob }) => {
        assert.equal((value(ann) as End).state, 'ended')
        assert.equal(await usedInTheEnd(db), USED + (isTaken(bob) ? HELD : 0))
      },
      bound: bound(1),
    })
  })

  it('what has run out is given back by hand, and charged if it is done', async () => {
    await exploreAll({
      before: left(runOut),
      actors: { ann: ends(true), bob: asProcess((own) => points(own).void('h')) },
      mayFail: (error) => error instanceof HoldEndedError,
      invariant: (db, { ann }) => expectEnded(db, ann, true, 0),
      bound: bound(1),
    })
  })

  it('what has failed is free for others at once, also if it could not have the counter', async () => {
    await exploreAll({
      before: left(live),
      actors: { ann: inTurn(ends(false), takes(8)), bob: joins(1) },
      invariant: async (db) => assert.equal(await usedInTheEnd(db), USED + 1 + 8),
      bound: bound(1),
    })
  })

  describe('another call with its id', () => {
    const argumentsOf = (isFenced: boolean) => (isFenced ? [key, reservation] : [reservation])

    const others = [
      ['failed', false, true],
      ['done, without a key', true, false],
      ['failed, without a key', false, false],
    ] as const
    it.each([['done', true, true] as const, ...(hasTime ? others : [])])(
      'comes when it has run out, beside an end of what is %s',
      async (_, isDone, isFenced) => {
        await exploreAll({
          before: left(runOut),
          actors: { ann: ends(isDone, argumentsOf(isFenced)), bob: repeats },
          mayFail: isRefused,
          invariant: async (db, { ann, bob }) => {
            const { state } = value(ann) as End
            const isOurs = bob?.status !== 'fulfilled' || bob.value === 'was used'
            // The holder decides whether the reservation counts, and the key's own fence whether the key does.
            assert(isFenced ? state === 'ended' : state === 'ended' || !isOurs)
            if (isFenced) assert.equal(await isKeyStored(db), isDone)
            if (state === 'lost') assert.equal(value(bob), 'used')
            assert.equal(await usedInTheEnd(db), USED + (isDone || isTaken(bob) ? HELD : 0))
          },
          bound: bound(1),
        })
      },
    )
  })

  describe('maintenance', () => {
    it.each([['done', true] as const, ...(hasTime ? [['failed', false] as const] : [])])(
      'forgets what has run out, beside an end of what is %s',
      async (_, isDone) => {
        await exploreAll({
          before: left({ ...runOut, isOld: true }),
          actors: { ann: ends(isDone, [reservation]), maintenance: forgets },
          invariant: async (db, { ann }) => {
            const { state } = value(ann) as End
            assert(state === 'ended' || state === 'lost')
            assert.equal(await usedInTheEnd(db), USED + (isDone && state === 'ended' ? HELD : 0))
          },
          bound: bound(1),
        })
      },
    )

    atLeisure(
      'forgets its row, whose window is over: what is done is charged to the one of now',
      async () => {
        const per = { everyUs: 86_400_000_000, fromUs: 0 }
        await exploreAll({
          before: async (db, schema) => {
            await left(runOut)(db, schema)
            const day = "starts_at = '2025-12-20T00:00:00Z'"
            await db.query(`
            update ${schema}.quota set ${day}, ends_at = '2025-12-21T00:00:00Z';
            update ${schema}.quota_entry set ${day}`)
          },
          actors: {
            ann: ends(true, [key, { ...reservation, per }]),
            bob: asProcess(({ database }) =>
              new Quota(database, 'points', {
                limit: 10,
                perMs: 86_400_000,
                from: new Date(0),
              }).take('kid', 2),
            ),
            maintenance: forgets,
          },
          invariant: async (db, { ann }) => {
            assert.deepEqual([(value(ann) as End).state, await isKeyStored(db)], ['ended', true])
            const [row] = await rowsOf(
              db,
              `select q.used::int, q.held::int, e.state, e.is_done, e.starts_at = q.starts_at as is_now
             from {schema}.quota q, {schema}.quota_entry e`,
            )
            // Or to its own: then it was reserved there to the end.
            if (row?.is_now) assert.deepEqual([row.used, row.held, row.state], [2 + HELD, 0, 'taken'])
            else assert.deepEqual([row?.used, row?.held, row?.is_done], [2, 0, true])
          },
          bound: bound(0),
        })
      },
    )

    it('forgets what is done, which another finds run out', async () => {
      await exploreAll({
        before: left({ ...runOut, isDone: true, isOld: true }),
        actors: { bob: takes(5), eve: joins(2), maintenance: forgets },
        mayFail: isFull,
        invariant: async (db, { bob, eve }) => {
          const others = (isTaken(bob) ? 5 : 0) + (isTaken(eve) ? 2 : 0)
          assert.equal(await usedInTheEnd(db), USED + HELD + others)
        },
        bound: bound(0),
      })
    })
  })

  describe('a renewal', () => {
    it.each([
      ['that another finds', runOut, takes(8)] as const,
      ['and the counter does not say so', { ...runOut, rowUntil: LATER }, takes(8)] as const,
      ...(hasTime ? [['while others have the counter', runOut, joins(8)] as const] : []),
    ])('of what has run out, %s', async (_, start, bob) => {
      await exploreAll({
        before: left(start),
        actors: { ann: renews, bob },
        mayFail: isFull,
        invariant: async (db, { ann, bob }) => {
          assert.equal(value(ann), 'held')
          const [entry] = await rowsOf(
            db,
            `select state, expires_at > '${LATER}' as is_renewed from {schema}.quota_entry where id = 'h'`,
          )
          // One of both: it is put off, or its place is another's.
          assert.deepEqual(
            entry,
            isTaken(bob) ? { state: 'expired', is_renewed: false } : { state: 'held', is_renewed: true },
          )
          assert.equal(await usedInTheEnd(db), USED + (isTaken(bob) ? 8 : 0))
        },
        bound: bound(1),
      })
    })

    atLeisure('of what another call takes over', async () => {
      await exploreAll({
        before: left(runOut),
        actors: { ann: renews, bob: repeats },
        mayFail: isRefused,
        invariant: async (db, { ann, bob }) => {
          assert.equal(value(ann), 'held')
          const [entry] = await rowsOf(db, "select state, holder from {schema}.quota_entry where id = 'h'")
          if (isTaken(bob)) assert.equal(entry?.state, 'taken')
          else assert.deepEqual(entry, { state: 'held', holder: 'ann' })
          assert.equal(await usedInTheEnd(db), USED + (isTaken(bob) ? HELD : 0))
        },
        bound: bound(1),
      })
    })

    atLeisure('of what is forgotten', async () => {
      await exploreAll({
        before: left({ ...runOut, isOld: true }),
        actors: { ann: renews, maintenance: forgets },
        invariant: async (db, { ann }) => {
          assert.equal(value(ann), 'held')
          assert.equal(await usedInTheEnd(db), USED)
        },
        bound: bound(1),
      })
    })
  })
}
