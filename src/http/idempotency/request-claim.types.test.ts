import type { Transaction as KyselyTransaction } from 'kysely'
import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../../dibs.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import * as express from '../adapters/express.js'
import { idempotent } from '../adapters/fetch.js'
import * as hono from '../adapters/hono.js'
import type { IdempotencyOptions, OwnTransaction } from './idempotency-options.js'
import { claimed } from './request-claim.js'

interface Shop {
  readonly orders: { readonly item: string }
}

/** Never run: the compiler checks what it says. */
const neverRun = (
  _: (dibs: Dibs, request: object, inKysely: OwnTransaction<KyselyTransaction<Shop>>) => unknown,
) => {}
const scope = 'anonymous'

it('claimed has the type of the transaction that made it', () => {
  neverRun((_, request, inKysely) => {
    expectTypeOf(claimed(request).tx).toEqualTypeOf<Transaction>()
    expectTypeOf(claimed(request, inKysely).tx).toEqualTypeOf<KyselyTransaction<Shop>>()
    // @ts-expect-error: the type comes from a transaction, not from the caller
    claimed<KyselyTransaction<Shop>>(request)
    // @ts-expect-error: `inKysely` makes another transaction
    claimed<Transaction>(request, inKysely)
  })
})

it('a transaction hands over what it says', () => {
  const inText: OwnTransaction<string> = (work) => work({ query: async () => ({}) as never }, 'text')
  expectTypeOf(inText).toExtend<OwnTransaction>()
  // @ts-expect-error: 7 is no string
  const inNumber: OwnTransaction<string> = (work) => work({ query: async () => ({}) as never }, 7)
  void inNumber
})

it('every middleware takes any transaction', () => {
  neverRun((dibs, _, transaction) => {
    express.idempotency(dibs, { scope, transaction })
    hono.idempotency(dibs, { scope, transaction })
  })
})

it('a handler on Fetch types gets the transaction of its options', () => {
  neverRun((dibs, _, transaction) => {
    idempotent(dibs, { scope }, (_request, { tx }) => {
      expectTypeOf(tx).toEqualTypeOf<Transaction>()
      return new Response()
    })
    idempotent(dibs, { scope, transaction }, (_request, { tx }) => {
      expectTypeOf(tx).toEqualTypeOf<KyselyTransaction<Shop>>()
      return new Response()
    })
    const options: IdempotencyOptions<Request> = { scope }
    idempotent(dibs, options, (_request, { tx }, id: string) => {
      expectTypeOf(tx).toEqualTypeOf<Transaction>()
      return new Response(id)
    })
    // @ts-expect-error: without `transaction` the handler gets a transaction of Dibs
    idempotent<KyselyTransaction<Shop>>(dibs, { scope }, () => new Response())
  })
})
