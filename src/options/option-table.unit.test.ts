import { expect, expectTypeOf, it } from 'vitest'
import { InvalidInputError } from '../errors.js'
import { duration, lifetime, number, wholeNumber } from './number-options.js'
import { checked, required, unchecked } from './option.js'
import { optionTable } from './option-table.js'
import { abortSignal, boolean, date, func, oneOf, string, stringList } from './value-options.js'

interface Nested {
  readonly baseMs?: number | undefined
}

interface Everything {
  readonly name: string
  readonly leaseMs?: number | undefined
  readonly timeoutMs?: number | undefined
  readonly keepMs?: number | undefined
  readonly limit?: number | undefined
  readonly jitter?: number | undefined
  readonly isOn?: boolean | undefined
  readonly ifDown?: 'fail' | 'allow' | undefined
  readonly queues?: readonly string[] | undefined
  readonly runAt?: Date | undefined
  readonly onLost?: ((reason: string) => void) | undefined
  readonly signal?: AbortSignal | undefined
  readonly retry?: Nested | undefined
  readonly tx?: { readonly query: () => void } | undefined
  readonly '~types'?: { readonly input: string } | undefined
}

const nested = optionTable<Nested>()('retry', { baseMs: duration({ min: 0, max: 10 }) })
const table = optionTable<Everything>()(
  'call',
  {
    name: required(string({ min: 1, max: 5 })),
    leaseMs: duration({ default: 30_000, min: 100, max: 86_400_000 }),
    timeoutMs: duration(),
    keepMs: lifetime({ default: 5 }),
    limit: wholeNumber({ default: 10, max: 1_000, fromClient: true }),
    jitter: number({ min: 0, max: 1, default: 0.5 }),
    isOn: boolean({ default: false }),
    ifDown: oneOf(['fail', 'allow'], { default: 'fail' }),
    queues: stringList(),
    runAt: date(),
    onLost: func(),
    signal: abortSignal(),
    retry: checked((field, value) => nested.read(value as Nested, field)),
    tx: unchecked(),
    '~types': unchecked(),
  },
  { refused: { once: 'is no option here: there is `twice`' } },
)

const defaults = { leaseMs: 30_000, keepMs: 5, limit: 10, jitter: 0.5, isOn: false, ifDown: 'fail' }

const refusal = (options: unknown, of?: string): unknown => {
  try {
    return table.read(options as Everything, of)
  } catch (error) {
    return error
  }
}

it('fills in the defaults, and keeps what was given', () => {
  const onLost = () => {}
  expect(table.read({ name: 'a', leaseMs: 100, onLost, ifDown: undefined })).toEqual({
    ...defaults,
    name: 'a',
    leaseMs: 100,
    onLost,
  })
  expect(table.read({ name: 'a', keepMs: Number.POSITIVE_INFINITY }).keepMs).toBe(Number.POSITIVE_INFINITY)
})

it('reads an object with a prototype of its own', () => {
  class Options {
    readonly name = 'a'
    get leaseMs() {
      return 200
    }
  }
  expect(table.read(new Options())).toMatchObject({ name: 'a', leaseMs: 200 })
})

it.each([
  [{ leaseMs: 50 }, '`leaseMs` must be a whole number of milliseconds from 100 to 86400000, not 50.'],
  [{ leaseMs: 'abc' }, '`leaseMs` must be a whole number of milliseconds from 100 to 86400000, not "abc".'],
  [{ leaseMs: null }, '`leaseMs` must be a whole number of milliseconds from 100 to 86400000, not null.'],
  [{ limit: 1.5 }, '`limit` must be a whole number from 1 to 1000, not 1.5.'],
  [{ jitter: 2 }, '`jitter` must be a number from 0 to 1, not 2.'],
  [{ isOn: 'yes' }, '`isOn` must be true or false, not "yes".'],
  [{ ifDown: 'wait' }, "`ifDown` must be 'fail' or 'allow', not \"wait\"."],
  [{ queues: ['a', 5] }, '`queues[1]` must be a string, not a number.'],
  [{ runAt: new Date('x') }, '`runAt` must be a valid Date, not an Invalid Date.'],
  [{ onLost: {} }, '`onLost` must be a function, not a plain object.'],
  [{ signal: {} }, '`signal` must be an AbortSignal, not a plain object.'],
  [{ name: 'abcdef' }, '`name` must be a string of 1 to 5 characters, not one of 6.'],
  [{ name: undefined }, '`name` must be a string of 1 to 5 characters, not undefined.'],
  [{ once: 1 }, '`once` is no option here: there is `twice`.'],
  [{ retry: { baseMs: 11 } }, '`retry.baseMs` must be a whole number of milliseconds from 0 to 10, not 11.'],
])('refuses %j', (options, message) => {
  expect(refusal({ name: 'a', ...options })).toMatchObject({ name: 'InvalidInputError', message })
})

it('names the nearest option, and none that exists for types alone', () => {
  expect(refusal({ name: 'a', leaseMS: 5 })).toMatchObject({
    field: 'leaseMS',
    message: expect.stringMatching(
      /^Unknown option "leaseMS"\. Did you mean leaseMs\? Expected one of: name,/,
    ),
  })
  expect((refusal({ constructor: 5 }) as Error).message).not.toContain('~types')
})

it('names the path of an option', () => {
  expect(refusal({ name: 'a', retry: { baseMS: 1 } }, 'email')).toMatchObject({ field: 'email.retry.baseMS' })
  expect(refusal({ name: 'a', leaseMs: 1 }, 'email')).toMatchObject({ field: 'email.leaseMs' })
})

it('tells values of clients from mistakes of the program', () => {
  expect(refusal({ name: 'a', limit: 0 })).toMatchObject({ status: 400 })
  expect(refusal({ name: 'a', leaseMs: 0 })).toMatchObject({ status: 500 })
})

it.each([null, 5, 'abc', [], () => {}, undefined])('refuses %j in place of options', (options) => {
  expect(refusal(options)).toBeInstanceOf(InvalidInputError)
})

it('refuses a transaction in place of options, and a proxy that throws', () => {
  const message = expect.stringContaining('Pass the transaction as `{ tx }`')
  expect(refusal({ query: () => {} })).toMatchObject({ message })
  const proxy = new Proxy({}, { ownKeys: () => { throw new Error('no') } }) // biome-ignore format: one line
  expect(refusal(proxy)).toBeInstanceOf(InvalidInputError)
})

it('needs no options if none is required', () => {
  expect(nested.read(undefined)).toEqual({ baseMs: undefined })
})

it('knows which values are always there', () => {
  const values = table.read({ name: 'a' })
  expectTypeOf(values.name).toEqualTypeOf<string>()
  expectTypeOf(values.leaseMs).toEqualTypeOf<number>()
  expectTypeOf(values.timeoutMs).toEqualTypeOf<number | undefined>()
  expectTypeOf(values.ifDown).toEqualTypeOf<'fail' | 'allow'>()
  expectTypeOf(values.onLost).toEqualTypeOf<((reason: string) => void) | undefined>()
})

it('fits the interface exactly', () => {
  interface Two {
    readonly one: string
    readonly two?: 'a' | 'b' | undefined
  }
  // @ts-expect-error `two` is missing
  optionTable<Two>()('two', { one: required(string()) })
  // @ts-expect-error there is no `three`
  optionTable<Two>()('two', { one: required(string()), two: oneOf(['a', 'b']), three: string() })
  // @ts-expect-error the check refuses `b`
  optionTable<Two>()('two', { one: required(string()), two: oneOf(['a']) })
  // @ts-expect-error the check lets `c` through
  optionTable<Two>()('two', { one: required(string()), two: oneOf(['a', 'b', 'c']) })
  // @ts-expect-error `one` is required
  optionTable<Two>()('two', { one: string(), two: oneOf(['a', 'b']) })
  // @ts-expect-error `one` is a string
  optionTable<Two>()('two', { one: required(duration()), two: oneOf(['a', 'b']) })
  // @ts-expect-error the default must be one of the values
  optionTable<Two>()('two', { one: required(string()), two: oneOf(['a', 'b'], { default: 'c' }) })
})
