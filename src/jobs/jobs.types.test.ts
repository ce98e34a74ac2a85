import type { PoolClient } from 'pg'
import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../dibs.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { JobContext } from './job-context.js'
import { job } from './job-spec.js'

interface Schemas {
  readonly amount: StandardSchema<string, { cents: number }>
  readonly receipt: StandardSchema<unknown, { id: number }>
}

/** Never run: what it says is checked by the compiler. */
const neverRun = (_: (dibs: Dibs, client: PoolClient, schemas: Schemas) => unknown): void => {}

it('adding takes what the schema takes, and a handler is given what that makes of it', () => {
  neverRun(async (dibs, client, { amount, receipt }) => {
    const jobs = dibs.jobs({ pay: { input: amount, result: receipt, queue: 'money' }, plain: {} })
    await jobs.add('pay', '7.00', { tx: client, priority: 1, wake: 'in-transaction' })
    await jobs.add('plain', { whatever: 1 })
    // @ts-expect-error: the schema takes a text
    await jobs.add('pay', { cents: 700 })
    // @ts-expect-error: no such job
    await jobs.add('pya', '7.00')
    // @ts-expect-error: misspelled
    await jobs.add('pay', '7.00', { priorty: 1 })
    // @ts-expect-error: a pool is no transaction
    await jobs.add('pay', '7.00', { tx: dibs.pool })
    await jobs.addMany([
      { name: 'pay', input: '7.00', delayMs: 1 },
      { name: 'plain', input: [1] },
    ])
    // @ts-expect-error: the schema takes a text
    await jobs.addMany([{ name: 'pay', input: 7 }])
    jobs.handle({
      pay: async (input, ctx) => {
        expectTypeOf(input).toEqualTypeOf<{ cents: number }>()
        expectTypeOf(ctx).toEqualTypeOf<JobContext>()
        // @ts-expect-error: it is not transactional
        ctx.tx
        return { id: 7 }
      },
      plain: (input) => expectTypeOf(input).toEqualTypeOf<unknown>(),
    })
    // @ts-expect-error: the schema of the result says something else
    jobs.handle({ pay: async () => ({ id: 'seven' }) })
    // @ts-expect-error: no such job
    jobs.handle({ pya: async () => {} })
    expectTypeOf(await jobs.result<'pay'>('1')).toEqualTypeOf<{ id: number }>()
    expectTypeOf(await jobs.result<'plain'>('1')).toEqualTypeOf<unknown>()
  })
})

it('types can be named without a schema', () => {
  neverRun(async (dibs) => {
    const jobs = dibs.jobs({
      email: job<{ to: string; at: Date }, { messageId: string }>({ queue: 'mail' }),
      book: job<{ seat: number }, void>({ transactional: true }),
      when: job<null, { at: Date }>(),
    })
    await jobs.add('email', { to: 'ann', at: new Date() })
    // @ts-expect-error: `to` is missing
    await jobs.add('email', { at: new Date() })
    jobs.handle({
      email: (input, ctx) => {
        // As JSON brings it back.
        expectTypeOf(input).toEqualTypeOf<{ to: string; at: string }>()
        expectTypeOf(ctx).toEqualTypeOf<JobContext>()
        return { messageId: input.to }
      },
      book: async ({ seat }, { tx }) => {
        expectTypeOf(seat).toEqualTypeOf<number>()
        expectTypeOf(tx).toEqualTypeOf<Transaction>()
      },
    })
    expectTypeOf(await jobs.result<'email'>('1')).toEqualTypeOf<{ messageId: string }>()
    // As JSON brings it back.
    expectTypeOf(await jobs.result<'when'>('1')).toEqualTypeOf<{ at: string }>()
    expectTypeOf(await jobs.result<'book'>('1')).toEqualTypeOf<void>()
    // @ts-expect-error: misspelled
    job<string>({ queu: 'mail' })
  })
})

it('a transactional handler has a transaction', () => {
  neverRun(async (dibs, _, { amount }) => {
    const jobs = dibs.jobs({ pay: { input: amount, transactional: true }, note: { transactional: false } })
    await jobs.work({
      pay: async (input, ctx) => {
        expectTypeOf(input).toEqualTypeOf<{ cents: number }>()
        expectTypeOf(ctx.tx).toEqualTypeOf<Transaction>()
      },
      note: async (_, ctx) => {
        expectTypeOf(ctx).toEqualTypeOf<JobContext>()
      },
    })
    // @ts-expect-error: misspelled
    dibs.jobs({ pay: { leaseMS: 1 } })
    // @ts-expect-error: no such policy
    dibs.jobs({ pay: { retry: { backoff: 'cubic' } } })
    dibs.jobs({ pay: { retry: (attempt, error) => (error instanceof TypeError ? null : attempt * 1_000) } })
  })
})
