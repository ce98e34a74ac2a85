import type { PoolClient } from 'pg'
import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../dibs.js'
import type { StandardSchema } from '../postgres/standard-schema.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { JobContext } from './job-context.js'
import { type JobPayload, job } from './job-definition.js'
import type { JobRef } from './job-ref.js'

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
    expectTypeOf(await jobs.result(await jobs.add('pay', '7.00'))).toEqualTypeOf<{ id: number }>()
    expectTypeOf(await jobs.result(await jobs.add('plain', 1))).toEqualTypeOf<unknown>()
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
    const email = await jobs.add('email', { to: 'ann', at: new Date() })
    expectTypeOf(email).toEqualTypeOf<JobRef<'email', { messageId: string }>>()
    expectTypeOf(await jobs.result(email, { waitMs: 1 })).toEqualTypeOf<{ messageId: string }>()
    // As JSON brings it back.
    expectTypeOf(await jobs.result(await jobs.add('when', null))).toEqualTypeOf<{ at: string }>()
    expectTypeOf(await jobs.result(await jobs.add('book', { seat: 1 }))).toEqualTypeOf<void>()
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

it('a reference says which job it is, and what its result is', () => {
  neverRun(async (dibs) => {
    const jobs = dibs.jobs({ sum: job<number[], number>(), text: job<string, { text: string }>() })
    const others = dibs.jobs({ sum: job<string, { total: string }>(), fax: job<string, boolean>() })
    const sum = await jobs.add('sum', [1, 2])
    const text = await jobs.add('text', 'a')
    const fax = await others.add('fax', 'a')
    expectTypeOf(await jobs.result(sum)).toEqualTypeOf<number>()
    expectTypeOf(await jobs.result(Math.random() > 0.5 ? sum : text)).toEqualTypeOf<
      number | { text: string }
    >()
    // An id may be that of any job.
    expectTypeOf(await jobs.result(sum.id)).toEqualTypeOf<number | { text: string }>()
    expectTypeOf(await jobs.result('1', { waitMs: 1 })).toEqualTypeOf<number | { text: string }>()
    // @ts-expect-error: nobody can say which job an id is
    await jobs.result<'sum'>(sum.id)
    for (const ref of [sum, sum.id]) {
      await jobs.get(ref)
      await jobs.cancel(ref, { reason: 'no' })
      await jobs.history(ref)
      await jobs.redrive(ref)
      await jobs.discard([ref, text])
    }

    // @ts-expect-error: no job of this name is defined here
    await jobs.result(fax)
    // @ts-expect-error: no job of this name is defined here
    await jobs.get(fax)
    // @ts-expect-error: no job of this name is defined here
    await jobs.cancel(fax)
    // @ts-expect-error: no job of this name is defined here
    await jobs.history(fax)
    // @ts-expect-error: no job of this name is defined here
    await jobs.redrive(fax)
    // @ts-expect-error: no job of this name is defined here
    await jobs.discard([fax])
    // @ts-expect-error: the same name, with another result
    await others.result(sum)

    const refs = await jobs.addMany([
      { name: 'sum', input: [1] },
      { name: 'text', input: 'a' },
    ])
    expectTypeOf(refs).toEqualTypeOf<(JobRef<'sum', number> | JobRef<'text', { text: string }>)[]>()
    const texts = await jobs.addMany(['a', 'b'].map((input) => ({ name: 'text', input })))
    expectTypeOf(texts).toEqualTypeOf<JobRef<'text', { text: string }>[]>()
    for (const ref of texts) expectTypeOf(await jobs.result(ref)).toEqualTypeOf<{ text: string }>()
    // @ts-expect-error: misspelled
    await jobs.addMany([{ name: 'text', input: 'a', dleayMs: 1 }])
    // @ts-expect-error: no such job
    await jobs.addMany([{ name: 'txet', input: 'a' }])
    // @ts-expect-error: the input of another job
    await jobs.addMany([{ name: 'text', input: [1] }])

    // A reference that the program has stored as JSON and reads again.
    const stored: { id: string; name: 'sum'; created: boolean } = JSON.parse(JSON.stringify(sum))
    expectTypeOf(await jobs.result(stored)).toEqualTypeOf<number>()
  })
})

interface Letter {
  to: string
  at: Date
  copies?: string[] | undefined
  answers?: Letter[]
}

class Account {
  name = 'ann'
  rename(): void {}
}

it('an input that JSON cannot represent does not compile', () => {
  neverRun(async (dibs, _, { amount }) => {
    const jobs = dibs.jobs({
      letter: job<Letter>(),
      pay: { input: amount },
      big: job<{ to: string; cents: bigint }>(),
      account: job<Account>(),
      any: {},
      open: job<{ data: unknown }>(),
    })
    await jobs.add('letter', { to: 'ann', at: new Date(), answers: [{ to: 'bob', at: new Date() }] })
    await jobs.add('any', { at: new Date(), of: [1, null, { a: 'b' }] })
    await jobs.add('any', {} as unknown)
    await jobs.add('any', {} as Letter)
    await jobs.add('open', { data: new Date() })
    await jobs.addMany([
      { name: 'letter', input: { to: 'ann', at: new Date() } },
      { name: 'any', input: {} as Letter },
    ])

    await jobs.add('big', {
      to: 'ann',
      // @ts-expect-error: a bigint
      cents: 7n,
    })
    await jobs.addMany([
      {
        name: 'big',
        input: {
          to: 'ann',
          // @ts-expect-error: a bigint
          cents: 7n,
        },
      },
    ])
    // @ts-expect-error: a class instance with a method
    await jobs.add('account', new Account())
    await jobs.add('any', {
      to: 'ann',
      // @ts-expect-error: a Map
      map: new Map(),
    })
    // @ts-expect-error: a function
    await jobs.add('any', () => 1)
    // @ts-expect-error: not a field of the input
    await jobs.add('letter', { to: 'ann', at: new Date(), form: 'bob' })
    // @ts-expect-error: not a field of the input
    await jobs.addMany([{ name: 'letter', input: { to: 'ann', at: new Date(), form: 'bob' } }])
  })
})

it('a function can be generic in the name of the job', () => {
  neverRun(async (dibs) => {
    const definitions = { letter: job<Letter, { id: number }>(), sum: job<number[], number>() }
    const jobs = dibs.jobs(definitions)
    const run = async <N extends keyof typeof definitions>(
      name: N,
      input: JobPayload<(typeof definitions)[N]>,
    ) => {
      const ref = await jobs.add(name, input)
      await jobs.get(ref)
      return await jobs.result(ref, { waitMs: 1 })
    }
    expectTypeOf(await run('sum', [1, 2])).toEqualTypeOf<number>()
    expectTypeOf(await run('letter', { to: 'ann', at: new Date() })).toEqualTypeOf<{ id: number }>()
    // @ts-expect-error: the input of another job
    await run('sum', { to: 'ann', at: new Date() })
  })
})
