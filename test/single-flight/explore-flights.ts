import assert from 'node:assert/strict'
import { describe, it } from 'vitest'
import { itInDepth } from '../depth.js'
import type { Depth } from '../locks/explored-locks.js'
import {
  exploredFlights,
  type FlightProcess,
  type FlightResult,
  leadHeld,
  readResult,
  valueThere,
} from './explored-flights.js'

const PAST = '2020-01-01'
const FUTURE = '2030-01-01'

/** Loads, if it gets the lead, and publishes. */
const caller =
  (name: string) =>
  async (own: FlightProcess): Promise<FlightResult & { loaded?: string }> => {
    const begun = await own.begin(name)
    if (!begun.lead) return begun
    await own.finish(name, begun.lead.fence, { value: name })
    return { ...begun, loaded: name }
  }

/** Every race of those who load, wait, come late and forget. */
export function describeFlightSchedules(bound: Depth): void {
  const { asProcess, exploreAll, rowsOf, timePasses, flightOf, isLeadFree } = exploredFlights(bound)

  describe('two callers load once', () => {
    it.each([
      ['of what was never loaded', '', 2],
      ['of what is over', valueThere(PAST, PAST), 1],
      ['of what is stale', valueThere(PAST, FUTURE), 1],
    ])('%s', async (_, before, depth) => {
      const isStale = before.includes(FUTURE)
      await exploreAll({
        before,
        actors: { bob: asProcess(caller('bob')), eve: asProcess(caller('eve')) },
        invariant: async (db, outcomes) => {
          const both = ['bob', 'eve'].map((name) =>
            readResult<FlightResult & { loaded?: string }>(outcomes[name]),
          )
          const loaders = both.filter(({ loaded }) => loaded !== undefined)
          assert.equal(loaders.length, 1, JSON.stringify(both))
          assert.equal((await flightOf(db))?.value, loaders[0]?.loaded)
          assert(await isLeadFree(db))
          const other = both.find(({ loaded }) => loaded === undefined)
          if (other?.state === 'fresh') assert.equal(other.value, loaders[0]?.loaded)
          else if (other?.state === 'stale') assert(isStale && other.value === 'old')
          else assert(!isStale && ['held', 'busy'].includes(`${other?.state}`), JSON.stringify(other))
        },
        bound: bound(depth),
      })
    })

    itInDepth('and so do three', async () => {
      const names = ['bob', 'eve', 'joe']
      await exploreAll({
        actors: Object.fromEntries(names.map((name) => [name, asProcess(caller(name))])),
        invariant: async (_, outcomes) => {
          const all = names.map((name) => readResult<FlightResult & { loaded?: string }>(outcomes[name]))
          assert.equal(all.filter(({ loaded }) => loaded !== undefined).length, 1)
        },
        bound: bound(0),
      })
    })
  })

  it('whoever waits is known to whoever publishes, and takes what that has loaded', async () => {
    await exploreAll({
      before: leadHeld,
      actors: {
        bob: asProcess(async (own) => {
          const first = await own.begin('bob')
          return { first, second: await own.begin('bob', { after: first.after ?? 0 }) }
        }),
        ann: asProcess((own) => own.finish('ann', 100, { value: 'ann' }, 0)),
      },
      invariant: async (_, { bob, ann }) => {
        const { first, second } = readResult<{ first: FlightResult; second: FlightResult }>(bob)
        const { isWanted } = readResult(ann)
        // The value is not kept: a caller that has not waited for it loads again.
        if (first.lead) return
        if (second.state === 'ended') assert.equal(second.value, 'ann')
        else if (second.state === 'held')
          assert(isWanted, 'it has ended, and nobody tells the one that waits')
        else assert.equal(second.state, 'busy', JSON.stringify(second))
      },
      bound: bound(2),
    })
  })

  it('a leader that is late puts nothing in the place of what its successor has loaded', async () => {
    await exploreAll({
      before: leadHeld,
      actors: {
        late: asProcess((own) => own.finish('ann', 100, { value: 'late' })),
        bob: asProcess(async (own) => {
          await timePasses(own.db)
          return caller('bob')(own)
        }),
      },
      invariant: async (db, outcomes) => {
        const bob = readResult<FlightResult & { loaded?: string }>(outcomes.bob)
        const late = readResult(outcomes.late)
        const row = await flightOf(db)
        assert.equal(late.state, bob.loaded ? 'refused' : 'published')
        assert.equal(row?.value, bob.loaded ?? 'late')
        if (late.state === 'refused' && late.isNewer) assert.equal(late.value, 'bob')
        assert(bob.loaded || bob.value === 'late' || bob.state === 'busy', JSON.stringify(bob))
      },
      bound: bound(2),
    })
  })

  it('a failure is for those who wait, and leaves the value alone', async () => {
    await exploreAll({
      before: `${leadHeld}; ${valueThere(PAST, PAST)}`,
      actors: {
        ann: asProcess((own) => own.finish('ann', 100, { failure: { message: 'down' } }, 0)),
        bob: asProcess(async (own) => {
          const first = await own.begin('bob')
          return first.lead ? first : await own.begin('bob', { after: first.after ?? 0 })
        }),
      },
      invariant: async (db, outcomes) => {
        const bob = readResult(outcomes.bob)
        const row = await flightOf(db)
        assert.deepEqual([row?.value, row?.failure], ['old', { message: 'down' }])
        assert(bob.lead || ['failed', 'held', 'busy'].includes(bob.state), JSON.stringify(bob))
        if (bob.state === 'failed') assert.deepEqual(bob.failure, { message: 'down' })
      },
      bound: bound(2),
    })
  })

  it('whoever asks after a key was forgotten is not given what was being loaded before', async () => {
    await exploreAll({
      before: leadHeld,
      actors: {
        ann: asProcess((own) => own.finish('ann', 100, { value: 'before' })),
        eve: asProcess(async (own) => {
          await own.drop()
          const first = await own.begin('eve')
          return first.lead ? first : await own.begin('eve', { after: first.after ?? 0 })
        }),
      },
      invariant: async (db, outcomes) => {
        const eve = readResult(outcomes.eve)
        const ann = readResult(outcomes.ann)
        assert.equal(ann.state, 'published')
        assert(eve.value !== 'before', JSON.stringify(eve))
        assert(eve.lead || ['held', 'busy'].includes(eve.state), JSON.stringify(eve))
        const row = await flightOf(db)
        assert(Number(row?.forgotten_fence) >= 100, 'it is forgotten')
      },
      bound: bound(2),
    })
  })

  it('a value that was forgotten while it was loaded is not kept, and one that is loaded after it is', async () => {
    await exploreAll({
      before: leadHeld,
      actors: {
        ann: asProcess((own) => own.finish('ann', 100, { value: 'before' })),
        eve: asProcess((own) => own.drop()),
        bob: asProcess(caller('bob')),
      },
      invariant: async (db, outcomes) => {
        const bob = readResult<FlightResult & { loaded?: string }>(outcomes.bob)
        const row = await flightOf(db)
        if (row?.value === 'before') assert(Number(row.forgotten_fence) >= 100)
        else assert.equal(row?.value, bob.loaded)
        assert(await isLeadFree(db))
      },
      bound: bound(0),
    })
  })

  it('two who forget the same key wait for each other, and both are right', async () => {
    await exploreAll({
      before: leadHeld,
      actors: { eve: asProcess((own) => own.drop()), joe: asProcess((own) => own.drop()) },
      invariant: async (db) => assert.equal(Number((await flightOf(db))?.forgotten_fence), 100),
      bound: bound(2),
    })
  })

  it('maintenance takes nothing away that tells a load from a later one', async () => {
    await exploreAll({
      before: `${leadHeld}; insert into {schema}.flight (key, forgotten_fence, keep_until) values ('k', 100, '${PAST}')`,
      actors: {
        maintenance: asProcess((own) => own.maintain()),
        ann: asProcess((own) => own.finish('ann', 100, { value: 'before' })),
      },
      invariant: async (db, outcomes) => {
        const { isForgotten } = readResult(outcomes.ann)
        const row = await flightOf(db)
        assert.equal(isForgotten, true)
        assert(row === undefined || Number(row.forgotten_fence) >= 100)
      },
      bound: bound(2),
    })
  })

  it('a publication that is sent twice is one', async () => {
    await exploreAll({
      before: leadHeld,
      actors: {
        pool: asProcess((own) => own.finish('ann', 100, { value: 'v' })),
        line: asProcess((own) => own.finish('ann', 100, { value: 'v' })),
      },
      invariant: async (db, outcomes) => {
        for (const name of ['pool', 'line']) assert.equal(readResult(outcomes[name]).state, 'published')
        assert.equal((await flightOf(db))?.fence, '100')
      },
      bound: bound(2),
    })
  })

  describe('as it is called', () => {
    const options = {
      ttlMs: 60_000_000,
      leaseMs: 80_000_000,
      refreshEarly: 0,
      ifBusy: 'fail' as const,
      waitMs: 0,
    }
    /** An actor that gets the value, or learns that another caller loads it. */
    const reader = (name: string) =>
      asProcess(async ({ fly, db }) => {
        const load = async () => {
          await db.query(`insert into done values ('k', '${name}')`)
          return name
        }
        return await fly('k', options, load).catch((error) => `${error.code}`)
      })

    it('two readers of one key load once', async () => {
      await exploreAll({
        actors: { bob: reader('bob'), eve: reader('eve') },
        invariant: async (db, { bob, eve }) => {
          const [loaded, ...others] = await rowsOf(db, 'select by from done')
          assert.deepEqual(others, [])
          for (const value of [readResult<string>(bob), readResult<string>(eve)])
            assert([loaded?.by, 'DIBS_BUSY'].includes(value), value)
          assert.equal((await flightOf(db))?.value, loaded?.by)
          assert(await isLeadFree(db))
        },
        bound: bound(1),
      })
    })

    it('a reader after a key was forgotten has what was loaded after it', async () => {
      await exploreAll({
        actors: {
          bob: reader('bob'),
          eve: asProcess(async ({ fly, db }) => {
            const { rows } = await db.query('select by from done')
            await fly.forget('k')
            const value = await fly('k', options, async () => 'eve').catch((error) => `${error.code}`)
            return { hasBegun: rows.length > 0, value }
          }),
        },
        invariant: async (_, { eve }) => {
          const { hasBegun, value } = readResult<{ hasBegun: boolean; value: string }>(eve)
          assert([...(hasBegun ? [] : ['bob']), 'eve', 'DIBS_BUSY'].includes(value), `${hasBegun} ${value}`)
        },
        bound: bound(1),
      })
    })
  })
}
