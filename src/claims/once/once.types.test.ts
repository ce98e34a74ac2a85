import type { PoolClient } from 'pg'
import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../../dibs.js'
import type { StandardSchema } from '../../postgres/standard-schema.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { Claim } from '../claim.js'

/** Never runs. The compiler checks the types inside. */
const neverRun = (
  _: (dibs: Dibs, client: PoolClient, receipt: StandardSchema<string, { id: number }>) => unknown,
): void => {}

it('once gives the function what its spec asks for', () => {
  neverRun(async (dibs, client) => {
    await dibs.once({ scope: 's', key: 'k' }, async (tx) => expectTypeOf(tx).toEqualTypeOf<Transaction>())
    await dibs.once({ scope: 's', key: 'k', tx: client }, async (tx) =>
      expectTypeOf(tx).toEqualTypeOf<PoolClient>(),
    )
    await dibs.once({ scope: ['a', 1, 2n], key: 'k', mode: 'leased' }, async (claim) => {
      expectTypeOf(claim).toEqualTypeOf<Claim>()
    })
    // @ts-expect-error: a pool is no transaction
    await dibs.once({ scope: 's', key: 'k', tx: dibs.pool }, async () => 1)
    // @ts-expect-error: a lease is for mode: 'leased'
    await dibs.once({ scope: 's', key: 'k', leaseMs: 1_000 }, async () => 1)
    // @ts-expect-error: misspelled
    await dibs.once({ scope: 's', key: 'k', fingerPrint: 1 }, async () => 1)
    // @ts-expect-error: a transaction is for mode: 'joined'
    await dibs.once({ scope: 's', key: 'k', mode: 'leased', tx: client }, async () => 1)
    await dibs.once(
      { scope: 's', key: 'k', mode: 'leased', onAmbiguous: (claim) => ({ outcome: claim.attempt }) },
      async () => 1,
    )
  })
})

it('once answers with what JSON makes of it', () => {
  neverRun(async (dibs) => {
    const at = { scope: 's', key: 'k' }
    expectTypeOf(
      await dibs.once(at, async () => ({ n: 1, list: ['a'], maybe: undefined as string | undefined })),
    ).toEqualTypeOf<{
      n: number
      list: string[]
      maybe: string | undefined
    }>()
    expectTypeOf(await dibs.once(at, async () => new Date())).toEqualTypeOf<string>()
    expectTypeOf(await dibs.once(at, async () => ({ at: new Date(), fn: () => 1 }))).toEqualTypeOf<{
      at: string
    }>()
    expectTypeOf(await dibs.once(at, async () => {})).toEqualTypeOf<void>()
    expectTypeOf(await dibs.once(at, async () => 1 as unknown)).toEqualTypeOf<unknown>()
    expectTypeOf((await dibs.onceDetailed(at, async () => 'x')).value).toEqualTypeOf<string>()
  })
})

it('a schema decides what the answer is', () => {
  neverRun(async (dibs, _, result) => {
    const spec = { scope: 's', key: 'k', result }
    expectTypeOf(await dibs.once(spec, async () => 'x')).toEqualTypeOf<{ id: number }>()
    const pay = dibs.operation('pay', { input: result, result }, async (input) => {
      expectTypeOf(input).toEqualTypeOf<{ id: number }>()
      return 'x'
    })
    expectTypeOf(await pay.run('1', { key: 'k' })).toEqualTypeOf<{ id: number }>()
    const plain = dibs.operation('plain', {}, async (input: { amount: number }) => ({
      at: new Date(input.amount),
    }))
    expectTypeOf(await plain.run({ amount: 1 }, { key: 'k' })).toEqualTypeOf<{ at: string }>()
    // @ts-expect-error: amount is missing
    await plain.run({}, { key: 'k' })
    // @ts-expect-error: a key is needed
    await plain.run({ amount: 1 }, {})
  })
})
