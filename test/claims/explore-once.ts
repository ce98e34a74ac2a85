import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { endClaim, finishClaim, forgetExpiredClaims, renewClaim } from '../../src/claims/claim-statements.js'
import { Claims } from '../../src/claims/claims.js'
import { onceOn } from '../../src/claims/once/once.js'
import type { JoinedSpec, OnceSpec } from '../../src/claims/once/once-spec.js'
import { Operation } from '../../src/claims/once/operation.js'
import {
  BusinessRuleError,
  FenceLostError,
  FingerprintMismatchError,
  InProgressError,
  TransientError,
} from '../../src/errors.js'
import { Database } from '../../src/postgres/database.js'
import type { Tx } from '../../src/postgres/executor.js'
import type { Isolation, Transaction } from '../../src/postgres/transaction-types.js'
import type { ExploreBound, ExploreOptions } from '../../src/testing/explore/options.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { exploreDibs } from '../explore-dibs.js'
import { EARLIER, exploredClaims, LATER, putClaim } from './explored-claims.js'

/** The bound of an exploration: preemptions, for the number that CI explores, and schedules. */
export type Depth = (preemptions: number) => ExploreBound

/** Every race of `once` that is known, and that must not be one; those of three callers only where there is time for them. */
export function describeOnceSchedules(bound: Depth, { hasTime = false } = {}): void {
  const atLeisure = it.skipIf(!hasTime)
  const fixture = exploredClaims()
  const at = { scope: 's', key: 'k' }
  const leased = { ...at, mode: 'leased' } as const

  /** One process. What it leaves to be done behind its answer belongs to it. */
  const asProcess =
    <T>(fn: (database: Database) => Promise<T>) =>
    async (db: Pool): Promise<T> => {
      const database = new Database(db, { schema: fixture.schema.name, prepared: false })
      try {
        return await fn(database)
      } finally {
        await database.close()
      }
    }

  const calls = (spec: OnceSpec, fn: (tx: Transaction) => Promise<unknown>) =>
    asProcess(
      async (database): Promise<unknown> =>
        (await onceOn(database)(spec as JoinedSpec & { tx?: undefined }, fn)).value,
    )

  const write =
    (by: string) =>
    async (tx: Tx): Promise<string> => {
      await tx.query("insert into done (key, by) values ('k', $1)", [by])
      return by
    }

  /** The effect of a leased handler: a statement of its own, outside of any transaction. */
  const callsOutside =
    (by: string, spec: object = {}) =>
    (db: Pool): Promise<unknown> =>
      calls({ ...leased, ...spec }, async () => {
        await db.query("insert into done (key, by) values ('k', $1)", [by])
        return by
      })(db)

  async function doneBy(db: Pool): Promise<string[]> {
    const { rows } = await db.query('select by from done')
    return rows.map(({ by }) => by)
  }

  async function claimOf(db: Pool): Promise<Record<string, unknown> | undefined> {
    const { rows } = await db.query(
      `select status, outcome::text, fence::int8::text, attempt, lost from ${fixture.schema.name}.claim where scope = 's' and key = 'k'`,
    )
    return rows[0]
  }

  const value = (outcome: Outcome | undefined): unknown => {
    assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
    return outcome.value
  }
  const reason = (outcome: Outcome | undefined): unknown =>
    outcome?.status === 'rejected' ? outcome.reason : undefined

  /** All schedules, or all up to the bound that is given; and it says so. */
  async function exploreAll(
    options: Omit<ExploreOptions, 'pool' | 'setup'> & { claim?: Parameters<typeof putClaim>[1] },
  ) {
    const { claim, ...rest } = options
    const report = await exploreDibs({
      pool: fixture.pool,
      setup: putClaim(fixture, claim),
      bound: bound(2),
      ...rest,
    })
    expect(report.isComplete, report.summary).toBe(true)
    // The server chooses which of several waiters gets a lock first.
    expect(report.notes.filter((note) => !note.includes('seen in one order only'))).toEqual([])
    return report
  }

  /** One of them has written, and everyone has its answer. */
  async function oneForAll(db: Pool, outcomes: Readonly<Record<string, Outcome>>): Promise<void> {
    const done = await doneBy(db)
    assert.equal(done.length, 1, `done by ${done}`)
    for (const outcome of Object.values(outcomes)) assert.equal(value(outcome), done[0])
    assert.deepEqual((await claimOf(db))?.outcome, JSON.stringify(done[0]))
  }

  describe('joined, alone', () => {
    it('two callers: one runs, both get its answer', async () => {
      await exploreAll({
        actors: { ann: calls(at, write('ann')), bob: calls(at, write('bob')) },
        invariant: oneForAll,
      })
    })

    atLeisure('three callers', async () => {
      await exploreAll({
        actors: { ann: calls(at, write('ann')), bob: calls(at, write('bob')), eve: calls(at, write('eve')) },
        invariant: oneForAll,
        bound: bound(1),
      })
    })

    it('the key has expired', async () => {
      await exploreAll({
        claim: { status: 'active', completed_at: EARLIER, expires_at: EARLIER, outcome: '"old"' },
        actors: { ann: calls(at, write('ann')), bob: calls(at, write('bob')) },
        invariant: oneForAll,
        bound: bound(2),
      })
    })

    it('the key has expired and is being cleared away', async () => {
      await exploreAll({
        claim: { status: 'active', completed_at: EARLIER, expires_at: EARLIER, outcome: '"old"' },
        actors: {
          ann: calls(at, write('ann')),
          maintenance: asProcess((database) => database.send(forgetExpiredClaims, ['10'])),
        },
        invariant: (db, { ann }) => oneForAll(db, { ann } as never),
      })
    })

    it('different payloads: one runs, the other is told', async () => {
      await exploreAll({
        actors: {
          ann: calls({ ...at, fingerprint: 1 }, write('ann')),
          bob: calls({ ...at, fingerprint: 2 }, write('bob')),
        },
        mayFail: (error) => error instanceof FingerprintMismatchError,
        invariant: async (db, outcomes) => {
          const [winner, ...others] = await doneBy(db)
          assert.equal(others.length, 0)
          for (const [name, outcome] of Object.entries(outcomes))
            if (name === winner) assert.equal(value(outcome), name)
            else assert(reason(outcome) instanceof FingerprintMismatchError)
        },
      })
    })

    it('the first rolls back: the second runs', async () => {
      const fail = async (tx: Tx): Promise<string> => {
        await write('ann')(tx)
        throw new TransientError('not now')
      }
      await exploreAll({
        actors: { ann: calls(at, fail), bob: calls(at, write('bob')) },
        mayFail: (error) => error instanceof TransientError,
        invariant: async (db, outcomes) => {
          assert.deepEqual(await doneBy(db), ['bob'])
          assert.equal(value(outcomes.bob), 'bob')
          // If bob was first, ann has his answer.
          if (outcomes.ann?.status === 'fulfilled') assert.equal(outcomes.ann.value, 'bob')
        },
      })
    })

    it('a terminal error is for all', async () => {
      const refuse = async (tx: Tx): Promise<string> => {
        await write('nobody')(tx)
        throw new BusinessRuleError('sold out')
      }
      await exploreAll({
        actors: { ann: calls(at, refuse), bob: calls(at, refuse) },
        mayFail: (error) => error instanceof BusinessRuleError,
        invariant: async (db, outcomes) => {
          assert.deepEqual(await doneBy(db), [])
          for (const outcome of Object.values(outcomes)) assert(reason(outcome) instanceof BusinessRuleError)
          assert.equal((await claimOf(db))?.status, 'failed')
        },
      })
    })
  })

  describe("joined, in the caller's transaction", () => {
    /** A transaction of the caller's with a write of its own before the claim. */
    const inTransaction = (by: string, isolation: Isolation) =>
      asProcess((database) =>
        database.transaction(
          async (tx) => {
            await tx.query('select count(*) from done') // the snapshot
            return (await onceOn(database)({ ...at, tx }, write(by))).value
          },
          { isolation, maxAttempts: 3 },
        ),
      )

    it.each(['read committed', 'repeatable read', 'serializable'] as const)('at %s', async (isolation) => {
      await exploreAll({
        actors: { ann: inTransaction('ann', isolation), bob: inTransaction('bob', isolation) },
        invariant: oneForAll,
        bound: bound(2),
      })
    })

    it('against one alone, at read committed: its transaction is never aborted', async () => {
      await exploreAll({
        actors: {
          ann: async (db) => {
            const database = new Database(db, { schema: fixture.schema.name, prepared: false })
            const client = await db.connect()
            try {
              await client.query('begin')
              const { value } = await onceOn(database)({ ...at, tx: client }, write('ann'))
              await client.query("insert into done (key, by) values ('after', $1)", [value])
              await client.query('commit')
              return value
            } finally {
              client.release()
            }
          },
          bob: calls(at, write('bob')),
        },
        invariant: async (db, outcomes) => {
          const { rows } = await db.query("select by from done where key = 'k'")
          assert.equal(rows.length, 1)
          for (const outcome of Object.values(outcomes)) assert.equal(value(outcome), rows[0].by)
        },
      })
    })
  })

  describe('joined, and nobody waits', () => {
    // That a claim is being made shows by a wait that ends in vain, which takes time. Here it shows at once: what is explored is
    // how it is told whose it is. The table has the claim, so that outcomes are stored and found as ever.
    let whole: string
    beforeAll(async () => {
      const name = `${fixture.schema.name}.claim_begin_joined`
      const { rows } = await fixture.pool.query('select pg_get_functiondef($1::regproc) as text', [name])
      whole = rows[0].text
      await fixture.pool.query(
        whole.replace(
          /\bbegin\b/,
          `begin
            if not pg_catalog.pg_try_advisory_xact_lock(1) then
              return '{"state": "busy"}';
            end if;`,
        ),
      )
    })
    afterAll(() => fixture.pool.query(whole))

    /** The actors whose result is that the key belongs to another request. */
    const mismatched = (outcomes: Readonly<Record<string, Outcome>>): string[] =>
      Object.keys(outcomes).filter((name) => reason(outcomes[name]) instanceof FingerprintMismatchError)

    const isTurnedAway = (error: unknown): boolean =>
      error instanceof InProgressError || error instanceof FingerprintMismatchError

    const asks = (fingerprint: number, by: string, fn = write(by)) =>
      calls({ ...at, fingerprint, waitMs: 0 }, fn)

    it('one payload: nobody is told that it is another', async () => {
      await exploreAll({
        actors: { ann: asks(1, 'ann'), bob: asks(1, 'bob') },
        mayFail: isTurnedAway,
        async invariant(db, outcomes) {
          assert.deepEqual(mismatched(outcomes), [])
          assert.equal((await doneBy(db)).length, 1)
        },
      })
    })

    it('different payloads: who is told so is not the one that is stored', async () => {
      let toldInFlight = 0
      await exploreAll({
        actors: { ann: asks(1, 'ann'), bob: asks(2, 'bob'), cat: asks(1, 'cat') },
        bound: bound(2), // also in short: without a preemption nobody is told in flight
        mayFail: isTurnedAway,
        async invariant(db, outcomes) {
          const [winner, ...others] = await doneBy(db)
          assert.ok(winner && others.length === 0)
          for (const name of mismatched(outcomes)) {
            assert.notEqual(name === 'bob', winner === 'bob', `${name} was result, and ${winner} is stored`)
            const { id } = reason(outcomes[name]) as FingerprintMismatchError
            if (id === undefined) toldInFlight++
          }
        },
      })
      expect(toldInFlight).toBeGreaterThan(0)
    })

    it('the first rolls back: who has its payload is never told that it is another', async () => {
      const fails = asks(1, 'ann', async (tx) => {
        await write('ann')(tx)
        throw new TransientError('not now')
      })
      await exploreAll({
        actors: { ann: fails, bob: asks(1, 'bob') },
        mayFail: (error) => isTurnedAway(error) || error instanceof TransientError,
        async invariant(_, outcomes) {
          assert.deepEqual(mismatched(outcomes), [])
        },
      })
    })
  })

  describe('leased', () => {
    const mayBeInProgress = (error: unknown): boolean => error instanceof InProgressError
    const oneEffect = async (db: Pool, outcomes: Readonly<Record<string, Outcome>>): Promise<void> => {
      const done = await doneBy(db)
      assert.equal(done.length, 1, `done by ${done}`)
      for (const outcome of Object.values(outcomes))
        if (outcome.status === 'fulfilled') assert.equal(outcome.value, done[0])
      assert.equal((await claimOf(db))?.outcome, JSON.stringify(done[0]))
    }

    it('two callers: one effect, the other is told or gets the answer', async () => {
      await exploreAll({
        actors: { ann: callsOutside('ann'), bob: callsOutside('bob') },
        mayFail: mayBeInProgress,
        invariant: oneEffect,
      })
    })

    atLeisure('three callers', async () => {
      await exploreAll({
        actors: { ann: callsOutside('ann'), bob: callsOutside('bob'), eve: callsOutside('eve') },
        mayFail: mayBeInProgress,
        invariant: oneEffect,
        bound: bound(1),
      })
    })

    it('two find the same lease run out: one takes over', async () => {
      await exploreAll({
        claim: { lease_until: EARLIER },
        actors: { ann: callsOutside('ann'), bob: callsOutside('bob') },
        mayFail: mayBeInProgress,
        invariant: async (db, outcomes) => {
          await oneEffect(db, outcomes)
          const claim = await claimOf(db)
          assert.deepEqual([claim?.attempt, claim?.lost], [2, 1])
        },
        bound: bound(1),
      })
    })

    it('two find a released claim: one goes on', async () => {
      await exploreAll({
        claim: { lease_until: '-infinity' },
        actors: { ann: callsOutside('ann'), bob: callsOutside('bob') },
        mayFail: mayBeInProgress,
        invariant: async (db, outcomes) => {
          await oneEffect(db, outcomes)
          const claim = await claimOf(db)
          assert.deepEqual([claim?.attempt, claim?.lost], [2, 0])
        },
        bound: bound(1),
      })
    })

    it('one who wakes up late stores its outcome, or the other does: never both', async () => {
      await exploreAll({
        claim: { lease_until: EARLIER },
        actors: {
          ann: callsOutside('ann'),
          late: asProcess(async (database) => {
            const [row] = await database.send(finishClaim, [
              's',
              'k',
              '100',
              '60000',
              'active',
              '"late"',
              '1000000',
              'false',
            ])
            return JSON.parse(`${row?.result ?? JSON.stringify({ state: row?.state })}`).state
          }),
        },
        invariant: async (db, { ann, late }) => {
          const done = await doneBy(db)
          const outcome = (await claimOf(db))?.outcome
          if (value(late) === 'stored') {
            assert.deepEqual([done, outcome, value(ann)], [[], '"late"', 'late'])
          } else {
            assert.equal(value(late), 'lost')
            assert.deepEqual([done, outcome, value(ann)], [['ann'], '"ann"', 'ann'])
          }
        },
      })
    })

    it('one who wakes up late keeps its lease, or has lost it', async () => {
      await exploreAll({
        claim: { lease_until: EARLIER },
        actors: {
          ann: callsOutside('ann'),
          late: asProcess(async (database) => {
            const [row] = await database.send(renewClaim, ['s', 'k', '100', '60000', '1000000'])
            return JSON.parse(`${row?.result ?? JSON.stringify({ state: row?.state })}`).state
          }),
        },
        mayFail: mayBeInProgress,
        invariant: async (db, { ann, late }) => {
          const done = await doneBy(db)
          if (ann?.status === 'rejected') assert.deepEqual([done, value(late)], [[], 'held'])
          else assert.deepEqual(done, ['ann'])
          // Held, and then not taken over: the fence is the same.
          if (ann?.status === 'rejected') assert.equal((await claimOf(db))?.fence, '100')
        },
      })
    })

    it('one who wakes up late releases what it holds, or nothing', async () => {
      await exploreAll({
        claim: { lease_until: EARLIER },
        actors: {
          ann: callsOutside('ann'),
          late: asProcess(async (database) => {
            const [row] = await database.send(endClaim, [
              's',
              'k',
              '100',
              '60000',
              null,
              '1000000',
              null,
              'false',
            ])
            return JSON.parse(`${row?.result ?? JSON.stringify({ state: row?.state })}`).state
          }),
        },
        invariant: async (db, { ann }) => {
          assert.equal(value(ann), 'ann')
          assert.deepEqual(await doneBy(db), ['ann'])
          assert.equal((await claimOf(db))?.outcome, '"ann"')
        },
      })
    })

    it('an operator forgets it: whoever held it writes nothing, whoever comes is new', async () => {
      await exploreAll({
        claim: { lease_until: LATER },
        actors: {
          holder: asProcess(async (database) => {
            const [row] = await database.send(finishClaim, [
              's',
              'k',
              '100',
              '60000',
              'active',
              '"held"',
              '1000000',
              'false',
            ])
            return JSON.parse(`${row?.result ?? JSON.stringify({ state: row?.state })}`).state
          }),
          operator: asProcess((database) =>
            new Claims(database).forget({ scope: 's', key: 'k' }, { force: true }),
          ),
          ann: callsOutside('ann'),
        },
        mayFail: (error) => mayBeInProgress(error) || error instanceof FenceLostError,
        invariant: async (db, { holder, ann }) => {
          const done = await doneBy(db)
          if (ann?.status === 'fulfilled' && ann.value === 'ann') assert.deepEqual(done, ['ann'])
          if (ann?.status === 'fulfilled' && ann.value === 'held') assert.equal(value(holder), 'stored')
        },
        bound: bound(1),
      })
    })
  })

  describe('an operation that was left', () => {
    const define = (database: Database, db: Pool, by: string) =>
      new Operation<object, string>(database, 'pay', {}, async () => {
        await db.query("insert into done (key, by) values ('k', $1)", [by])
        return by
      })
    /** Runs the maintenance of operations. Returns how many it has finished. */
    const maintains = (by: string) => (db: Pool) =>
      asProcess(async (database) => {
        const { attempts } = await define(database, db, by).takeOver(5)
        return (await Promise.all(attempts)).length
      })(db)

    it('is finished by one of two processes that maintain', async () => {
      await exploreAll({
        claim: { scope: ':pay', lease_until: EARLIER, open_operation: 'pay', input: '{}' },
        actors: { ann: maintains('ann'), bob: maintains('bob') },
        invariant: async (db, outcomes) => {
          assert.equal((await doneBy(db)).length, 1)
          const finished = Object.values(outcomes).map(value) as number[]
          assert.deepEqual(finished.toSorted(), [0, 1])
        },
        bound: bound(2),
      })
    })

    it('is finished by a caller or by maintenance', async () => {
      await exploreAll({
        claim: { scope: ':pay', lease_until: EARLIER, open_operation: 'pay', input: '{}' },
        actors: {
          ann: (db) => asProcess((database) => define(database, db, 'ann').run({}, { key: 'k' }))(db),
          maintenance: maintains('maintenance'),
        },
        mayFail: (error) => error instanceof InProgressError,
        invariant: async (db, { ann }) => {
          const done = await doneBy(db)
          assert.equal(done.length, 1)
          if (ann?.status === 'fulfilled') assert.equal(ann.value, done[0])
        },
        bound: bound(2),
      })
    })
  })
}
