import fc from 'fast-check'
import { beforeAll, describe, expect, it } from 'vitest'
import { openRates, pool, START_US, schema } from '../../../test/rate-fixture.js'
import { type ModelLimit, RateModel } from '../../../test/rate-model.js'
import { LocalRates, type RateDecision } from './local-rates.js'
import { checkRateSpec, type RateAlgorithm } from './rate-spec.js'

openRates()

interface Step extends ModelLimit {
  /** Since the step before; now and then the clock goes back. */
  readonly advanceUs: bigint
  readonly costs: readonly bigint[]
}

interface Run {
  readonly perMs: number
  readonly steps: readonly Step[]
}

const isBucket = (algorithm: RateAlgorithm) => algorithm === 'gcra' || algorithm === 'token-bucket'

/** Periods from the shortest to a year, limits from 1 to the most that is allowed with them. */
function runs(algorithm: RateAlgorithm, { sameLimit = false, alone = false } = {}): fc.Arbitrary<Run> {
  return fc.constantFrom(1, 7, 1_000, 31_536_000_000).chain((perMs) => {
    const most = BigInt(Math.floor(2 ** 51 / perMs))
    const amount = fc.oneof(
      { weight: 6, arbitrary: fc.bigInt(1n, 6n) },
      { weight: 1, arbitrary: fc.bigInt(most - 2n, most) },
    )
    const per = BigInt(perMs) * 1_000n
    const advanceUs = fc.oneof(
      { weight: 2, arbitrary: fc.constantFrom(0n, 1n) },
      { weight: 5, arbitrary: fc.bigInt(0n, per) },
      { weight: 1, arbitrary: fc.bigInt(0n, 3n * per) },
      { weight: 1, arbitrary: fc.bigInt(-2n * per, 0n) },
    )
    const limits = fc.record({ limit: amount, burst: amount })
    const stepOf = ({ limit, burst }: ModelLimit) => {
      const capacity = isBucket(algorithm) ? burst : limit
      const cost = fc.oneof(fc.bigInt(1n, capacity), fc.constant(1n), fc.constant(capacity))
      return fc.record({
        advanceUs,
        limit: fc.constant(limit),
        burst: fc.constant(burst),
        costs: fc.array(cost, { minLength: 1, maxLength: alone ? 1 : 3 }),
      })
    }
    const steps = sameLimit
      ? limits.chain((same) => fc.array(stepOf(same), { minLength: 1, maxLength: 10 }))
      : fc.array(limits.chain(stepOf), { minLength: 1, maxLength: 10 })
    return steps.map((made) => ({ perMs, steps: made }))
  })
}

/** Each decision is the model's, and what it says of later comes true there, to the microsecond. */
function expectModeled(
  algorithm: RateAlgorithm,
  { perMs, steps }: Run,
  decisions: readonly RateDecision[][],
) {
  const model = new RateModel(algorithm, BigInt(perMs) * 1_000n)
  let now = START_US
  steps.forEach((step, n) => {
    now += step.advanceUs
    const told = decisions[n] ?? []
    expect(told).toHaveLength(step.costs.length)
    step.costs.forEach((cost, m) => {
      expect(told[m]?.granted).toBe(model.take(now, cost, step))
      const remaining = BigInt(told[m]?.remaining ?? -1)
      if (remaining > 0n) expect(model.fits(now, remaining, step)).toBe(true)
      expect(model.fits(now, remaining + 1n, step)).toBe(false)
    })
    step.costs.forEach((cost, m) => {
      const { granted, retryAfterUs, resetUs = -1 } = told[m] ?? {}
      const reset = now + BigInt(resetUs)
      // Beyond some hundreds of years a number of JavaScript does not tell microseconds apart.
      if (Number.isSafeInteger(resetUs)) {
        expect(model.used(reset, step)).toBe(0n)
        if (resetUs > 0) expect(model.used(reset - 1n, step)).toBeGreaterThan(0n)
      }
      expect(retryAfterUs === undefined).toBe(granted)
      if (retryAfterUs === undefined || !Number.isSafeInteger(retryAfterUs)) return
      expect(retryAfterUs).toBeGreaterThan(0)
      expect(model.fits(now + BigInt(retryAfterUs), cost, step)).toBe(true)
      expect(model.fits(now + BigInt(retryAfterUs) - 1n, cost, step)).toBe(false)
    })
  })
}

/** All steps of a run in one round trip, through `rate_take` and the clock. */
beforeAll(async () => {
  const { name } = schema
  await pool.query(`
    create function ${name}.play(p_algorithm text, p_per_us bigint, p_steps json) returns json[] language plpgsql as $$
    declare
      v_step json;
      v_result json[] := '{}';
    begin
      delete from ${name}.rate;
      update ${name}.test_time set us = ${START_US};
      for v_step in select json_array_elements(p_steps) loop
        update ${name}.test_time set us = us + (v_step ->> 'advanceUs')::bigint;
        v_result := v_result || ${name}.rate_take('r', 's', p_algorithm || ':x', p_algorithm, (v_step ->> 'limit')::bigint,
          p_per_us, (v_step ->> 'burst')::bigint, (v_step ->> 'costs')::bigint[], null);
      end loop;
      return v_result;
    end $$`)
})

async function play(algorithm: RateAlgorithm, { perMs, steps }: Run): Promise<RateDecision[][]> {
  const json = JSON.stringify(
    steps.map(({ costs, ...step }) => ({ ...step, costs: `{${costs}}` })),
    (_, value) => (typeof value === 'bigint' ? String(value) : value),
  )
  const { rows } = await pool.query(`select ${schema.name}.play($1, $2, $3) as told`, [
    algorithm,
    perMs * 1_000,
    json,
  ])
  return rows[0].told
}

describe.each(['gcra', 'token-bucket', 'fixed-window', 'sliding-window'] as const)('%s', (algorithm) => {
  it('decides in the database as the model does', async () => {
    await fc.assert(
      fc.asyncProperty(runs(algorithm), async (run) =>
        expectModeled(algorithm, run, await play(algorithm, run)),
      ),
      { numRuns: 100 },
    )
  })

  it('decides in this process as the model does', () => {
    fc.assert(
      fc.property(runs(algorithm, { sameLimit: true, alone: true }), (run) => {
        const { perMs, steps } = run
        const [{ limit = 1n, burst = 1n } = {}] = steps
        const local = new LocalRates(
          checkRateSpec('r', {
            algorithm,
            limit: Number(limit),
            perMs,
            burst: isBucket(algorithm) ? Number(burst) : undefined,
          }),
        )
        let now = START_US
        const decisions = steps.map(({ advanceUs, costs }) => {
          now += advanceUs
          return [local.take('s', Number(costs[0]), now)]
        })
        expectModeled(algorithm, run, decisions)
      }),
      { numRuns: 150 },
    )
  })
})
