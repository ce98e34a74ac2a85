import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { describe, it } from 'vitest'
import {
  AmbiguousOutcomeError,
  BusyError,
  FenceLostError,
  InProgressError,
  SingletonConflictError,
} from '../../src/errors.js'
import type { Tx } from '../../src/postgres/executor.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { type Depth, exploredAcquire } from './explored-acquire.js'
import { EARLIER } from './explored-claims.js'

/** Every race of a slot that is known, and that must not be one. */
export function describeSingletonSchedules(bound: Depth): void {
  const { asProcess, exploreAll, rowsOf, doneBy, value, reason } = exploredAcquire(bound)
  const at = { scope: 's', per: 'day' } as const
  const row = { scope: '::s', key: 'day:2026-01-01', id: 'used' }

  const write =
    (by: string) =>
    async (tx: Tx): Promise<string> => {
      await tx.query("insert into done (key, by) values ('k', $1)", [by])
      return by
    }
  const joined = (by: string, spec: object = {}) =>
    asProcess(({ singleton }) => singleton({ ...at, holder: by, ...spec }, write(by)))
  const leased = (by: string, spec: object = {}) =>
    asProcess(({ singleton, db }) =>
      singleton({ ...at, holder: by, ...spec, mode: 'leased' }, async () => write(by)(db as unknown as Tx)),
    )
  const inTransaction = (by: string) =>
    asProcess(({ singleton, transaction }) =>
      transaction(async (tx) => {
        await tx.query('select count(*) from done')
        return singleton({ ...at, holder: by, tx }, write(by))
      }),
    )

  const isConflict = (error: unknown): boolean =>
    error instanceof SingletonConflictError || error instanceof BusyError
  const claimOf = async (db: Pool) =>
    (
      await rowsOf(
        db,
        "select status, outcome::text, input ->> 'by' as by, attempt, lost from {schema}.claim",
      )
    )[0]

  /** One has done it, and everyone else knows who. */
  async function oneOnly(db: Pool, outcomes: Readonly<Record<string, Outcome>>): Promise<void> {
    const [winner, ...others] = await doneBy(db)
    assert.deepEqual(others, [])
    for (const [name, outcome] of Object.entries(outcomes)) {
      if (name === winner) assert.equal(value(outcome), name)
      else {
        const error = reason(outcome)
        assert(isConflict(error), String(error))
        if (error instanceof SingletonConflictError) {
          assert.equal(error.holder, winner)
          assert(error.state === 'pending' || error.result === winner)
        }
      }
    }
    const claim = await claimOf(db)
    assert.deepEqual([claim?.status, claim?.outcome, claim?.by], ['active', JSON.stringify(winner), winner])
  }

  describe('joined', () => {
    it('two callers: one does it', async () => {
      await exploreAll({
        actors: { ann: joined('ann'), bob: joined('bob') },
        mayFail: isConflict,
        invariant: oneOnly,
      })
    })

    it('three callers', async () => {
      await exploreAll({
        actors: { ann: joined('ann'), bob: joined('bob'), eve: joined('eve') },
        mayFail: isConflict,
        invariant: oneOnly,
        bound: bound(0),
      })
    })

    it("in callers' transactions", async () => {
      await exploreAll({
        actors: { ann: inTransaction('ann'), bob: inTransaction('bob') },
        mayFail: isConflict,
        invariant: oneOnly,
      })
    })

    it('one who fails leaves it to the other', async () => {
      const fails = asProcess(({ singleton }) =>
        singleton({ ...at, holder: 'ann' }, async (tx) => {
          await write('ann')(tx)
          throw new TypeError('no')
        }),
      )
      await exploreAll({
        actors: { ann: fails, bob: joined('bob') },
        mayFail: (error) => error instanceof TypeError || isConflict(error),
        invariant: async (db, { bob }) => {
          assert.deepEqual(await doneBy(db), ['bob'])
          assert.equal(value(bob), 'bob')
        },
      })
    })
  })

  describe('leased', () => {
    it('two callers: one does it', async () => {
      await exploreAll({
        actors: { ann: leased('ann'), bob: leased('bob') },
        mayFail: isConflict,
        invariant: oneOnly,
      })
    })

    it('three callers', async () => {
      await exploreAll({
        actors: { ann: leased('ann'), bob: leased('bob'), eve: leased('eve') },
        mayFail: isConflict,
        invariant: oneOnly,
        bound: bound(0),
      })
    })

    it('one leased and one joined', async () => {
      await exploreAll({
        actors: { ann: leased('ann'), bob: joined('bob') },
        mayFail: isConflict,
        invariant: oneOnly,
      })
    })

    it('two find the lease of a holder that is gone run out: one takes over', async () => {
      await exploreAll({
        claim: { ...row, lease_until: EARLIER, input: '{"by":"gone"}' },
        actors: { ann: leased('ann'), bob: leased('bob') },
        mayFail: isConflict,
        invariant: async (db, outcomes) => {
          await oneOnly(db, outcomes)
          const claim = await claimOf(db)
          assert.deepEqual([claim?.attempt, claim?.lost], [2, 1])
        },
        bound: bound(1),
      })
    })

    it('two give it up: it has failed once', async () => {
      await exploreAll({
        claim: { ...row, lease_until: EARLIER },
        actors: { ann: leased('ann', { maxAttempts: 1 }), bob: leased('bob', { maxAttempts: 1 }) },
        mayFail: isConflict,
        invariant: async (db, outcomes) => {
          assert.deepEqual(await doneBy(db), [])
          for (const outcome of Object.values(outcomes))
            assert.equal((reason(outcome) as SingletonConflictError).state, 'failed')
          const claim = await claimOf(db)
          assert.deepEqual([claim?.status, claim?.lost], ['failed', 1])
        },
        bound: bound(1),
      })
    })

    it('one gives it up, and one takes over: never both', async () => {
      await exploreAll({
        claim: { ...row, lease_until: EARLIER },
        actors: { ann: leased('ann', { maxAttempts: 1 }), bob: leased('bob') },
        mayFail: (error) => isConflict(error) || error instanceof FenceLostError,
        invariant: async (db, { bob }) => {
          const done = await doneBy(db)
          const claim = await claimOf(db)
          if (bob?.status === 'fulfilled') assert.deepEqual([done, claim?.status], [['bob'], 'active'])
          else assert.deepEqual([done, claim?.status], [[], 'failed'])
        },
      })
    })
  })

  it('one gives it up, and one takes over and fails: nobody is left with it', async () => {
    const fails = asProcess(({ singleton }) =>
      singleton({ ...at, mode: 'leased' }, () => Promise.reject(new TypeError('no'))),
    )
    await exploreAll({
      claim: { ...row, lease_until: EARLIER },
      actors: { ann: leased('ann', { maxAttempts: 1 }), bob: fails },
      mayFail: (error) => isConflict(error) || error instanceof TypeError,
      invariant: async (db, { ann, bob }) => {
        const left = await rowsOf(db, 'select status, lease_until::text as until from {schema}.claim')
        if (ann?.status === 'fulfilled') assert.deepEqual(left, [{ status: 'active', until: null }])
        else if (reason(bob) instanceof TypeError)
          assert.deepEqual(left, [{ status: 'pending', until: '-infinity' }])
        else assert.deepEqual(left, [{ status: 'failed', until: null }])
      },
    })
  })

  describe('void', () => {
    const done = { ...row, status: 'active', completed_at: EARLIER, outcome: '"first"' }
    const voids = (by: string, frees = true) =>
      asProcess(async ({ voidSlot }) => {
        const slot = { key: row.key, id: row.id }
        return (await voidSlot({ scope: 's', slot, frees }, write(by))).ok
      })

    it.each([
      ['which is free then', true],
      ['which stays taken', false],
    ])('against void: one undoes the slot, %s', async (_, frees) => {
      await exploreAll({
        claim: done,
        actors: { ann: voids('ann', frees), bob: voids('bob', frees) },
        invariant: async (db, outcomes) => {
          const [winner, ...others] = await doneBy(db)
          assert.deepEqual(others, [])
          for (const [name, outcome] of Object.entries(outcomes))
            assert.equal(value(outcome), name === winner)
        },
        bound: bound(1),
      })
    })

    it.each(['joined', 'leased'] as const)(
      'against a claim: whoever comes after it has the slot, %s',
      async (mode) => {
        await exploreAll({
          claim: done,
          actors: { ann: (mode === 'joined' ? joined : leased)('ann'), undo: voids('undo') },
          mayFail: (error) => isConflict(error),
          invariant: async (db, { ann, undo }) => {
            assert.equal(value(undo), true)
            const claim = await claimOf(db)
            if (ann?.status === 'fulfilled') {
              assert.deepEqual(await doneBy(db), ['ann', 'undo'])
              assert.deepEqual([claim?.status, claim?.by], ['active', 'ann'])
            } else {
              assert.deepEqual([await doneBy(db), claim], [['undo'], undefined])
              assert.equal((reason(ann) as SingletonConflictError).id, row.id)
            }
          },
        })
      },
    )

    it('against one who finishes: it is not undone before it is done', async () => {
      await exploreAll({
        claim: { ...row, lease_until: EARLIER },
        actors: { ann: leased('ann'), undo: voids('undo') },
        mayFail: (error) => error instanceof InProgressError || error instanceof AmbiguousOutcomeError,
        invariant: async (db, { ann, undo }) => {
          assert.equal(value(ann), 'ann')
          const claim = await claimOf(db)
          if (undo?.status === 'fulfilled')
            assert.deepEqual([await doneBy(db), claim], [['ann', 'undo'], undefined])
          else assert.deepEqual([await doneBy(db), claim?.status], [['ann'], 'active'])
        },
      })
    })
  })
}
