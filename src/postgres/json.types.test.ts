import { expectTypeOf, it } from 'vitest'
import type { Dibs } from '../dibs.js'
import type { Json, NotStorable, Storable, Stored } from './json.js'

interface Address {
  readonly street: string
  city?: string
}

interface User {
  name: string
  since: Date
  home?: Address | undefined
  tags: readonly string[]
}

interface Tree {
  value: Date
  children?: Tree[]
  named?: Record<string, Tree>
}

type Alias = string | Date | Alias[] | { [key: string]: Alias }
type Pair<T> = { one: T; next?: Pair<T[]> }

class Account {
  name = 'ann'
  rename(name: string): void {
    this.name = name
  }
}

class Point {
  #sum = 3
  x = 1
  y = this.#sum - this.x
}

class Money {
  #cents = 700n
  toJSON(): string {
    return String(this.#cents)
  }
}

/** Never run: the compiler checks it. */
const neverRun = (_: (dibs: Dibs) => unknown): void => {}

it('Storable leaves data as it is', () => {
  expectTypeOf<Storable<{ a: number; b?: string }>>().toEqualTypeOf<{ a: number; b?: string }>()
  expectTypeOf<Storable<User>>().toExtend<User>()
  expectTypeOf<User>().toExtend<Storable<User>>()
  expectTypeOf<Storable<unknown>>().toEqualTypeOf<unknown>()
  expectTypeOf<Storable<Json>>().toEqualTypeOf<Json>()
  expectTypeOf<Storable<Date>>().toEqualTypeOf<Date>()
  expectTypeOf<Storable<[number, Date?]>>().toEqualTypeOf<[number, Date?]>()
  expectTypeOf<Storable<never>>().toEqualTypeOf<never>()
})

it('Storable ends for recursive types', () => {
  expectTypeOf<Tree>().toExtend<Storable<Tree>>()
  expectTypeOf<Alias>().toExtend<Storable<Alias>>()
  expectTypeOf<Pair<number>>().toExtend<Storable<Pair<number>>>()
})

it('Storable marks the part that JSON cannot represent', () => {
  type Bad = Storable<{ id: bigint; to: string }>
  expectTypeOf<Bad['to']>().toEqualTypeOf<string>()
  expectTypeOf<Bad['id']>().toExtend<NotStorable<string>>()
  expectTypeOf<Storable<string | bigint>>().not.toEqualTypeOf<string | bigint>()
})

it('Stored leaves out what exists at compile time only', () => {
  expectTypeOf<Stored<{ id: string; at: Date; '~result'?: Date }>>().toEqualTypeOf<{
    id: string
    at: string
  }>()
})

it('kv takes what JSON can represent', () => {
  neverRun(async ({ kv }) => {
    const [user, tree, alias, anything] = [{} as User, {} as Tree, {} as Alias, {} as unknown]
    for (const value of [
      user,
      tree,
      alias,
      anything,
      new Point(),
      new Money(),
      new URL('a:b'),
      null,
      [1, 'a'],
    ])
      await kv.set('a', value)
    await kv.set('a', user)
    await kv.set('a', tree)
    await kv.set('a', alias)
    await kv.set('a', anything)
    await kv.set('a', { anything, list: [user, { at: new Date(), of: [tree] }] })
    await kv.set('a', [1, 'a', null, undefined])
    await kv.set<User>('a', { name: 'ann', since: new Date(), tags: [] })
    const claim = await kv.setIfAbsent('a', { by: 'ann', at: new Date() })
    if (!claim.ok) expectTypeOf(claim.current.value).toEqualTypeOf<{ by: string; at: string }>()
    const swap = await kv.compareAndSet('a', 1, user)
    if (!swap.ok) expectTypeOf(swap.current?.value.since).toEqualTypeOf<string | undefined>()
  })
})

it('kv refuses what JSON cannot represent, at the part that is wrong', () => {
  neverRun(async ({ kv }) => {
    await kv.set('a', {
      to: 'ann',
      // @ts-expect-error: a bigint
      id: 1n,
    })
    await kv.setIfAbsent('a', {
      // @ts-expect-error: a function
      call: () => 1,
      to: 'ann',
    })
    await kv.compareAndSet('a', 1, {
      list: [
        {
          // @ts-expect-error: a Map
          map: new Map([['a', 1]]),
          n: 1,
        },
      ],
    })
    await kv.set('a', {
      // @ts-expect-error: a class instance with a method
      account: new Account(),
    })
    // @ts-expect-error: a class instance with a method
    await kv.set('a', new Account())
    await kv.patch('a', {
      // @ts-expect-error: a bigint
      n: 1n,
    })
    await kv.patch('a', { at: new Date(), of: { n: 1 }, gone: undefined })
    await kv.patch<User>('a', { name: 'bob' })
    // @ts-expect-error: not a field of the value
    await kv.patch<User>('a', { nme: 'bob' })
    // @ts-expect-error: a Set
    await kv.set('a', new Set([1]))
    // @ts-expect-error: its data is private, and it has no toJSON
    await kv.set('a', new URLSearchParams())
    // @ts-expect-error: binary data, although a Buffer has toJSON
    await kv.set('a', Buffer.from('a'))
    // @ts-expect-error: a bigint in an array
    await kv.set('a', [1n])
    // @ts-expect-error: a bigint
    await kv.set('a', 1n)
    // @ts-expect-error: a symbol
    await kv.set('a', { kind: Symbol('a') })
    // @ts-expect-error: a promise that was not awaited
    await kv.set('a', kv.get('b'))
    // @ts-expect-error: not a field of the type that is given
    await kv.set<User>('a', { name: 'ann', since: new Date(), tags: [], age: 7 })
  })
})

it('a function that stores any value says so in its own parameter', () => {
  neverRun(async ({ kv }) => {
    const remember = <T>(value: T & Storable<T>) => kv.set<T>('a', value)
    await remember({ to: 'ann' })
    // @ts-expect-error: a bigint
    await remember({ id: 1n })
    // The value is checked when it is stored.
    const rememberAny = <T>(value: T) => kv.set<unknown>('a', value)
    await rememberAny({ id: 1n })
  })
})

it('operations take what JSON can represent', () => {
  neverRun(async (dibs) => {
    const pay = dibs.operation('pay', {}, async (input: User) => input.name)
    await pay.run({ name: 'ann', since: new Date(), tags: [] }, { key: 'a' })
    // @ts-expect-error: not a field of the input
    await pay.run({ name: 'ann', since: new Date(), tags: [], age: 7 }, { key: 'a' })
    const charge = dibs.operation('charge', {}, async (input: { cents: bigint }) => `${input.cents}`)
    // @ts-expect-error: a bigint
    await charge.run({ cents: 7n }, { key: 'a' })
  })
})
