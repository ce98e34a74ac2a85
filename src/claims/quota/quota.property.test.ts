import fc from 'fast-check'
import { expect, it } from 'vitest'
import { NOW, openQuotas } from '../../../test/claims/open-quotas.js'
import { type QuotaAnswer, QuotaModel } from '../../../test/claims/quota-model.js'
import { freshName } from '../../../test/database.js'
import { movingClock } from '../../../test/moving-clock.js'
import {
  FingerprintMismatchError,
  HoldEndedError,
  InvalidInputError,
  NeverFitsError,
  QuotaExceededError,
} from '../../errors.js'
import type { Quota } from './quota.js'

const fixture = openQuotas()
const WINDOW_MS = 10_000

const subject = fc.constantFrom('ann', 'ann', 'bob')
const amount = fc.integer({ min: 1, max: 6 })
const kind = <K extends string>(name: K) => fc.constant(name)
const ids = fc.constantFrom('a', 'b', 'c', 'd')
const step = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({ kind: kind('take'), subject, amount, id: fc.option(ids, { nil: undefined }) }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: kind('reserve'),
      subject,
      amount,
      id: ids,
      leaseMs: fc.constantFrom(1, 1_500, 4_000, 12_000),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ kind: kind('settle'), id: ids, actual: fc.integer({ min: 0, max: 6 }) }),
  },
  { weight: 1, arbitrary: fc.record({ kind: kind('void'), id: ids }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: kind('refund'), id: ids, amount: fc.option(amount, { nil: undefined }) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: kind('advance'),
      ms: fc.constantFrom(1, 1_499, 1_500, 3_000, 9_000, 2 * 86_400_000),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: kind('limit'), limit: fc.integer({ min: 5, max: 12 }) }) },
  { weight: 1, arbitrary: fc.record({ kind: kind('maintain') }) },
)
type Step = typeof step extends fc.Arbitrary<infer S> ? S : never

/** The quota's result of a step, in the form that the model uses. */
async function answerOf(quota: Quota, one: Step, limit: number): Promise<QuotaAnswer> {
  const figures = ({ used, held }: { used: number; held: number }) => ({ used, held })
  try {
    if (one.kind === 'take') {
      const took = await quota.take(one.subject, one.amount, { limit, id: one.id })
      return [took.replayed ? 'replayed' : 'taken', figures(took)]
    }
    if (one.kind === 'reserve') {
      const { leaseUntil: expiresAt } = await quota.reserve(one.subject, one.amount, {
        limit,
        id: one.id,
        leaseMs: one.leaseMs,
      })
      return ['reserved', expiresAt.getTime() - NOW.getTime()]
    }
    if (one.kind === 'settle') return ['settled', figures(await quota.settle(one.id, one.actual, { limit }))]
    if (one.kind === 'void') {
      await quota.void(one.id)
      return ['void']
    }
    if (one.kind !== 'refund') return ['nothing']
    const { replayed } = await quota.refund(one.id, { amount: one.amount })
    return [replayed ? 'already' : 'refunded']
  } catch (error) {
    if (error instanceof QuotaExceededError) return ['refused', figures(error), error.retryAfterMs]
    if (error instanceof HoldEndedError) return ['ended', error.state]
    if (error instanceof FingerprintMismatchError) return ['mismatch']
    if (error instanceof NeverFitsError) return ['never']
    if (error instanceof InvalidInputError) return ['too much']
    throw error
  }
}

function expectedOf(model: QuotaModel, one: Step, limit: number): QuotaAnswer {
  if (one.kind === 'take') return model.take(one.subject, one.amount, limit, one.id)
  if (one.kind === 'reserve') return model.take(one.subject, one.amount, limit, one.id, one.leaseMs)
  if (one.kind === 'settle') return model.settle(one.id, one.actual, limit)
  if (one.kind === 'void') return model.void(one.id)
  if (one.kind === 'refund') return model.refund(one.id, one.amount)
  return ['nothing']
}

it('answers as a list would that is summed up each time', async () => {
  const clock = await movingClock(fixture.pool, fixture.schema.name, NOW)
  const plan = fc.record({
    everyMs: fc.constantFrom(undefined, WINDOW_MS),
    ifLate: fc.constantFrom('take' as const, 'overdraw' as const, 'fail' as const),
    keepMs: fc.constantFrom(2_000, 30 * 86_400_000),
    steps: fc.array(step, { minLength: 20, maxLength: 40, size: 'max' }),
  })
  let refused = 0
  let rounds = 0
  let kinds = new Set<string>()
  // Else little was tried.
  do {
    await fc.assert(
      fc.asyncProperty(plan, async ({ steps, everyMs, ifLate, keepMs }) => {
        const model = new QuotaModel({ everyMs, ifLate, keepMs })
        const per = everyMs === undefined ? {} : { perMs: everyMs, from: NOW }
        const quota = fixture.dibs.quota(freshName('points'), { limit: 10, ifLate, keepMs, ...per })
        let limit = 10
        await clock.set(NOW)
        for (const one of steps) {
          if (one.kind === 'limit') limit = one.limit
          if (one.kind === 'advance') {
            model.now += one.ms
            await clock.set(new Date(NOW.getTime() + model.now))
          }
          if (one.kind === 'maintain') {
            model.maintain()
            await fixture.pool.query(`select ${fixture.schema.name}.quota_delete_expired(1000)`)
          }
          const expected = expectedOf(model, one, limit)
          expect(await answerOf(quota, one, limit)).toEqual(expected)
          const name = 'subject' in one ? one.subject : 'ann'
          expect(await quota.peek(name)).toMatchObject(model.use(name))
          kinds = kinds.add(`${one.kind} ${expected[0]}`)
          if (expected[0] === 'refused') refused++
        }
        expect((await quota.verify()).items).toEqual([])
        for (const name of ['ann', 'bob']) expect(await quota.peek(name)).toMatchObject(model.use(name))
      }),
      {
        numRuns: Number(process.env.RUNS ?? 60),
        ...(process.env.SEED ? { seed: Number(process.env.SEED) } : {}),
      },
    )
  } while ((refused <= 50 || kinds.size <= 18) && ++rounds < 4)
  expect(refused).toBeGreaterThan(50)
  expect(kinds.size).toBeGreaterThan(18)
})
