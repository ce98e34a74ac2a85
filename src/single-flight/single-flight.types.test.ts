import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../dibs.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import type { LoadContext } from './flight-spec.js'

/** Never run: what it says is checked by the compiler. */
const neverRun = (_: (dibs: Dibs, rates: StandardSchema<unknown, { usd: number }>) => unknown): void => {}

it('single-flight answers with what JSON, or its schema, makes of what was loaded', () => {
  neverRun(async (dibs, rates) => {
    const load = async (context: LoadContext) => ({ at: new Date(), key: context.key })
    expectTypeOf(await dibs.singleFlight('k', load)).toEqualTypeOf<{ at: string; key: string }>()
    expectTypeOf(await dibs.singleFlight('k', { ttlMs: 1 }, async () => 1)).toEqualTypeOf<number>()
    expectTypeOf(await dibs.singleFlight('k', { result: rates }, load)).toEqualTypeOf<{ usd: number }>()
    expectTypeOf(dibs.singleFlight.forget('k')).toEqualTypeOf<Promise<void>>()
    // @ts-expect-error: misspelled
    await dibs.singleFlight('k', { ttl: 1 }, load)
    // @ts-expect-error: no such policy
    await dibs.singleFlight('k', { ifBusy: 'wait' }, load)
  })
})
