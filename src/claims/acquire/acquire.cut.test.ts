import { describe, expect, it, vi } from 'vitest'
import { startAnswerCutter } from '../../../test/answer-cutter.js'
import { acquirersOf } from '../../../test/claims/acquirers.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until, url } from '../../../test/database.js'
import type { Dibs } from '../../dibs.js'
import { CommitOutcomeUnknownError, ConnectionLostError, PermanentError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { claim } from './acquire-claims.js'

vi.setConfig({ testTimeout: 60_000 })
const fixture = openClaims()
const { query } = acquirersOf(fixture)
/** More messages than all answers of a call have. */
const MOST = 60
const points = (dibs: Dibs) => dibs.quota('points', { limit: 100, ledger: true })

const listOf = (dibs: Dibs, name: string, how: 'keyed' | 'slot' | 'plain') => [
  ...(how === 'keyed' ? [claim.once({ scope: 's', key: name })] : []),
  ...(how === 'plain' ? [] : [claim.singleton({ scope: ['slot', name], per: 'month' })]),
  points(dibs).claim(name, 4),
  claim.lock(name),
]

interface CallOutcome {
  readonly name: string
  readonly value: unknown
  readonly runs: number
  readonly after: number
  readonly used: number
  readonly kept: number
}

/** Makes one call for each message of the server's answers from there on, and cuts the connection behind that message. */
async function sweep(
  where: 'the opening' | 'the end',
  how: 'keyed' | 'slot' | 'plain',
  end: (tx: Tx) => Promise<unknown>,
  judge: (outcome: CallOutcome) => Promise<void> | void,
  ended: 'silent' | 'terminated' = 'silent',
): Promise<void> {
  await using cutter = await startAnswerCutter(url, ended)
  let cuts = 0
  for (; cuts < MOST; cuts++) {
    const name = `${where}-${how}-${ended}-${cuts}`
    await fixture.beside(
      async (dibs) => {
        await dibs.acquire(listOf(dibs, `warm-${name}`, how), async () => 1)
        if (where === 'the opening') cutter.cutAfter(cuts)
        let runs = 0
        let after = 0
        const value = await dibs
          .acquire(listOf(dibs, name, how), async (tx) => {
            await tx.query(`insert into ${fixture.log} (name) values ($1)`, [name])
            tx.afterCommit(() => void after++)
            if (++runs === 1 && where === 'the end') cutter.cutAfter(cuts)
            return await end(tx)
          })
          .catch((error) => error)
        const { used } = await points(fixture.dibs).peek(name)
        const kept = (await fixture.logged()).filter((one) => one === name).length
        await judge({ name, value, runs, after, used, kept })
      },
      { connectionString: cutter.url, max: 1 },
    )
    if (!cutter.hasCut) break
  }
  expect(cuts).toBeGreaterThan(1)
  expect(cuts).toBeLessThan(MOST)
  expect((await points(fixture.dibs).verify()).items).toEqual([])
  expect(
    await query("select from {schema}.claim where status = 'pending' and lease_until > '-infinity'"),
  ).toEqual([])
}

describe('the end of a connection in the middle of an answer', () => {
  it('from the opening on: nothing has happened, or all of it', async () => {
    await sweep(
      'the opening',
      'keyed',
      async () => 'done',
      ({ value, runs, after, used, kept }) => {
        if (value === 'done') expect([runs, after, used, kept]).toEqual([1, 1, 4, 1])
        else {
          expect(value).toBeInstanceOf(ConnectionLostError)
          expect([runs, after, used, kept]).toEqual([0, 0, 0, 0])
        }
      },
    )
  })

  it.each([
    ['keyed', 'silent'],
    ['slot', 'silent'],
    ['slot', 'terminated'],
  ] as const)(
    'to the outcome and COMMIT: it is done once, and the caller has its answer, %s, %s',
    async (how, ended) => {
      await sweep(
        'the end',
        how,
        async () => 'done',
        ({ value, after, used, kept }) => {
          expect([value, after, used, kept]).toEqual(['done', 1, 4, 1])
        },
        ended,
      )
    },
  )
})

it('to a final error: it is that error, under the key, and nothing else', async () => {
  const fail = () => Promise.reject(new PermanentError('declined'))
  await sweep('the end', 'keyed', fail, async ({ name, value, after, used, kept }) => {
    expect(value).toMatchObject({ message: 'declined' })
    expect([after, used, kept]).toEqual([0, 0, 0])
    expect(await fixture.dibs.claims.get({ scope: 's', key: name })).toMatchObject({ status: 'failed' })
  })
})

describe('the end of a connection in the middle of an answer to a leased call', () => {
  it.each(['the opening', 'the end'] as const)(
    'from %s on: it runs once, and is stored once',
    async (where) => {
      await using cutter = await startAnswerCutter(url)
      let cuts = 0
      for (; cuts < MOST; cuts++) {
        const name = `leased-${where}-${cuts}`
        let runs = 0
        await fixture.beside(
          async (dibs) => {
            await dibs.acquire(listOf(dibs, `warm-${name}`, 'keyed'), { mode: 'leased' }, async () => 1)
            if (where === 'the opening') cutter.cutAfter(cuts)
            const call = dibs.acquire(
              listOf(dibs, name, 'keyed'),
              { mode: 'leased', leaseMs: 60_000 },
              async ({ attempt }) => {
                runs++
                if (where === 'the end') cutter.cutAfter(cuts)
                return attempt
              },
            )
            expect([await call, runs]).toEqual([1, 1])
          },
          { connectionString: cutter.url, max: 1 },
        )
        expect(await points(fixture.dibs).peek(name)).toMatchObject({ used: 4, held: 0 })
        if (!cutter.hasCut) break
      }
      expect(cuts).toBeGreaterThan(1)
      expect(cuts).toBeLessThan(MOST)
      const held = 'select from {schema}.lock where expires_at > now()'
      expect([await query(held), (await points(fixture.dibs).verify()).items]).toEqual([[], []])
    },
  )
})

const slow = { scope: 'slow', per: 'month' } as const
it.each([
  [
    'a slot',
    (dibs: Dibs, fn: (tx: Transaction) => Promise<string>) => dibs.singleton({ ...slow, waitMs: 0 }, fn),
  ],
  [
    'several claims',
    (dibs: Dibs, fn: (tx: Transaction) => Promise<string>) =>
      dibs.acquire([claim.singleton(slow), claim.lock('x')], { waitMs: 0 }, fn),
  ],
])(
  'a COMMIT that goes on after its connection has ended is not taken for one that is in the way: %s',
  async (_, run) => {
    const trigger = `${fixture.log}_slow`
    await fixture.pool.query(`
    create function ${trigger}() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return null; end $$;
    create constraint trigger ${trigger} after insert on ${fixture.log} deferrable initially deferred
    for each row execute function ${trigger}()`)
    try {
      await fixture.beside(async (dibs) => {
        const call = run(dibs, async (tx) => {
          await tx.query(`insert into ${fixture.log} (name) values ('slow')`)
          setTimeout(() => Reflect.get(tx.client, 'connection').stream.destroy(), 100)
          return 'done'
        })
        const outcome = await call.catch((error) => error)
        if (outcome !== 'done') expect(outcome).toBeInstanceOf(CommitOutcomeUnknownError)
      })
      await until(async () => (await fixture.logged()).length === 1, 'the commit')
    } finally {
      await fixture.pool.query(`drop trigger ${trigger} on ${fixture.log}; drop function ${trigger}`)
    }
  },
)

it('where nothing would show it, the outcome of COMMIT is unknown, and it is not repeated', async () => {
  let unknown = 0
  await sweep(
    'the end',
    'plain',
    async () => 'done',
    ({ value, runs, used, kept }) => {
      expect(runs).toBe(1)
      expect([used, kept]).toEqual(kept === 0 ? [0, 0] : [4, 1])
      if (value === 'done') expect(kept).toBe(1)
      else {
        expect(value).toBeInstanceOf(CommitOutcomeUnknownError)
        unknown++
      }
    },
  )
  expect(unknown).toBeGreaterThan(0)
})
