import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { findBreaches } from './conventions.mjs'

const src = join(import.meta.dirname, '../src')

it.each([
  'index.ts',
  'testing/index.ts',
  'http/index.ts',
  'http/adapters/express.ts',
  'http/adapters/fastify.ts',
  'http/adapters/hono.ts',
  'http/adapters/nest.ts',
  'http/adapters/node.ts',
])('what %s exports follows the conventions', (entry) => {
  expect(findBreaches(join(src, entry))).toEqual([])
})

const breachesIn = (source: string): string[] => findBreaches('src/index.ts', () => source)

const breachesAcross = (files: Record<string, string>): string[] =>
  findBreaches('src/index.ts', (file) => files[file] ?? '')

type Breach = readonly [name: string, source: string, problem: string]

/** A breach in each form that a part of the API had before. */
const breaches: readonly Breach[] = [
  ['ttlMs on a lease', 'export interface LockOptions { readonly ttlMs?: number | undefined }', 'leaseMs'],
  [
    'a positional tx in an interface of a function',
    'export interface Adjust { <R>(tx: Tx | undefined, table: string): Promise<R> }',
    'field `tx`',
  ],
  [
    'a positional tx in a type of a function',
    'export type Adjust = (tx: Tx, table: string) => Promise<void>',
    'field `tx`',
  ],
  [
    'a positional tx in a method',
    'export class Rows { adjust(table: string, tx: Tx): void {} }',
    'field `tx`',
  ],
  [
    'a positional transaction under another name',
    'export function adjust(own: Transaction): void {}',
    'field `tx`',
  ],
  [
    'a function before the options',
    'export interface Acquire { <T>(claims: C, fn: (tx: Tx) => Promise<T>, options?: O): Promise<T> }',
    'put that last',
  ],
  [
    'a result union without ok',
    'export type KvClaim = { readonly won: true } | { readonly won: false; readonly value: T }',
    'KvClaim is told apart by `won`',
  ],
  [
    'a result union of intersections without ok',
    'export type Take = (Use & { readonly had: true }) | (Use & { readonly had: false })',
    'Take is told apart by `had`',
  ],
  ['an old name of a result', 'export interface Added { readonly added: boolean }', 'created'],
  ['by in place of holder', 'export interface LockOptions { readonly by?: string | undefined }', 'holder'],
  ['a wait without a unit', 'export interface OnceSpec { readonly wait?: boolean }', 'waitMs'],
  [
    'attempts in place of maxAttempts',
    'export interface Retry { readonly attempts?: number }',
    'maxAttempts',
  ],
  ['a duration without its unit', 'export interface O { readonly timeout?: number }', 'must end in Ms'],
  ['a time that is a duration', 'export interface O { readonly resetsAt: number }', 'must be a Date'],
  ['a duration that is a date', 'export interface O { readonly retryAfterMs: Date }', 'must be a number'],
  ['a fence that is a string', 'export interface L { readonly fence: string }', 'must be a number'],
  ['an id that is a number', 'export interface J { readonly jobId: number }', 'must be a string'],
  [
    'a list that is an array',
    'interface P { limit: number; cursor: string }\nexport class Locks { list(filter: F, page: P): Promise<readonly LockInfo[]> { throw 0 } }',
    'Promise<Page<…>>',
  ],
  [
    'a try form that throws',
    'type HoldAttempt = { readonly ok: true } | { readonly ok: false }\nexport class Quota { take(): void {} tryTake(): Promise<QuotaTake> { throw 0 } reserve(): void {} tryReserve(): Promise<HoldAttempt> { throw 0 } }',
    'tryTake() must return a union with `ok`',
  ],
  [
    'a claim without its try form',
    'export class RateLimit { take(): void {} }',
    'RateLimit has no tryTake()',
  ],
  [
    'an operation without its try form',
    'export class Operation { run(): void {} }',
    'Operation has no tryRun()',
  ],
]

/** Every way from an export to a field. */
const reached: readonly Breach[] = [
  [
    'of a base',
    'interface Common { readonly by: string }\nexport interface O extends Common {}',
    'Common.by',
  ],
  [
    'of a base of a class',
    'class Base { readonly by = 1 }\nexport class Lock extends Base {}',
    'Base.by must',
  ],
  ['of Pick', "interface X { by: string; n: number }\nexport type O = Pick<X, 'by'>", 'O.by must'],
  ['of Omit', "interface X { by: string; n: number }\nexport type O = Omit<X, 'n'>", 'O.by must'],
  ['of Partial', 'interface X { by: string }\nexport type O = Partial<X>', 'X.by must'],
  ['of an intersection', 'interface X { by: string }\nexport type O = X & { n: number }', 'X.by must'],
  ['of an element', 'interface X { by: string }\nexport interface O { all: readonly X[] }', 'X.by must'],
  ['of a nested literal', 'export interface O { readonly lock: { readonly by: string } }', 'O.lock.by must'],
  ['of a parameter', 'interface X { by: string }\nexport class L { take(x: X): void {} }', 'X.by must'],
  ['of a literal as a parameter', 'export class L { take(o: { by: string }): void {} }', 'L.take(o).by must'],
  [
    'of a type parameter',
    'export class L { take<O extends { by: string }>(o: O): void {} }',
    'L.take.by must',
  ],
  ['of a result', 'interface X { by: string }\nexport function take(): Promise<X> { throw 0 }', 'X.by must'],
  [
    'of what a callback gets',
    'export function take(fn: (slot: { by: string }) => void): void {}',
    'take(fn)(slot).by must',
  ],
  [
    'of an event',
    "interface Origin { n: number }\nexport interface DibsEvents { 'dibs:lock.lost': Origin & { by: string } }",
    'DibsEvents.dibs:lock.lost.by must',
  ],
  ['of a parameter property', 'export class L { constructor(readonly by: string) {} }', 'L.by must'],
  ['of an error', 'export class LostError { constructor(o: { by: string }) {} }', 'LostError(o).by must'],
  ['of a getter', 'export class L { get by(): string { return 1 } }', 'L.by must'],
  ['of a getter of an interface', 'export interface L { get by(): string }', 'L.by must'],
  ['of an indexed type', "interface X { x: { by: string } }\nexport type O = X['x']", 'X.x.by must'],
  ['of a constant', 'const all = { by: 1 }\nexport type O = typeof all', 'all.by must'],
  ['of a cast', 'export const all = read() as unknown as { by: string }', 'all.by must'],
  ['of a name that is exported below', 'interface A { by: string }\nexport { type A as B }', 'A.by must'],
  ['of an index signature', 'export interface O { [name: string]: { by: string } }', 'O.by must'],
]

/** Every form that a public call may have. */
const calls: readonly Breach[] = [
  [
    'a field that is a function',
    'export class Rows { readonly adjust: (tx: Tx) => void }',
    'Rows.adjust() takes a tr',
  ],
  [
    'a field with a function as its value',
    'export class Rows { readonly adjust = (tx: Tx): void => {} }',
    'field `tx`',
  ],
  [
    'a field of a result',
    'interface Rows { readonly adjust: (tx: Tx) => void }\nexport function rows(): Rows {}',
    'field `tx`',
  ],
  [
    'a field with a named function type',
    'type Resume = () => Promise<boolean>\nexport class Queues { readonly resume: Resume }',
    'Queues.resume() returns a bare',
  ],
  ['a constant', 'export const adjust = (tx: Tx): void => {}', 'field `tx`'],
  [
    'an object of functions',
    'export const claim = { lock: (name: string, tx: Tx): void => {} }',
    'claim.lock() takes',
  ],
  ['a method of an object', 'export const claim = { lock(tx: Tx): void {} } as const', 'claim.lock() takes'],
  [
    'an overload',
    'export function lock(name: string): void\nexport function lock(tx: Tx): void\nexport function lock(x: any): void {}',
    'src/index.ts:2: lock() takes',
  ],
  ['an alias of a transaction', 'type Own = Tx\nexport function lock(own: Own): void {}', 'field `tx`'],
  ['a transaction of another type', 'export function lock(tx: unknown): void {}', 'field `tx`'],
  ['a constant with a type', 'export const adjust: (tx: Tx) => void = make()', 'adjust() takes'],
  [
    'an object with a type',
    'export const claim = { lock(tx: Tx): void {} } satisfies C',
    'claim.lock() takes',
  ],
  ['a generic transaction', 'export function lock<X extends Tx>(own: X): void {}', 'field `tx`'],
  [
    'a named callback before the options',
    'type Fn = (n: number) => void\nexport function lock(name: string, fn: Fn, o: O): void {}',
    'put that last',
  ],
  [
    'a callback in parentheses',
    'export function lock(name: string, fn: (() => void) | undefined, o: O): void {}',
    'put that last',
  ],
]

const shapes: readonly Breach[] = [
  [
    'options that are required',
    'interface O { n: number }\nexport interface With { <T>(name: string, options: O, fn: () => T): T }',
    'requires `options` before its function',
  ],
  [
    'options under another name that are required',
    'interface O { n: number }\ntype Fn = () => void\nexport function withLock(name: string, spec: O & { m: 1 }, fn: Fn): void {}',
    'requires `spec` before its function',
  ],
  [
    'options of an unknown type that are required',
    'export function withLock(name: string, options: O, fn: () => void): void {}',
    'requires `options` before its function',
  ],
  [
    'options that only an overload without a function leaves out',
    'interface O { n: number }\nexport interface With { (name: string): void; (name: string, o: O, fn: () => void): void }',
    'requires `o` before its function',
  ],
  [
    'a try form whose name only promises a union',
    'interface TakeAttempt { readonly n: number }\nexport class Q { tryTake(): Promise<TakeAttempt> { throw 0 } }',
    'Q.tryTake() must return a union with `ok`',
  ],
  [
    'a try form with a member without ok',
    'type A = { ok: true } | { n: 1 }\nexport class Q { tryTake(): Promise<A> { throw 0 } }',
    'Q.tryTake() must return a union with `ok`',
  ],
  [
    'a try form with a boolean',
    'export class Q { tryTake(): Promise<{ ok: boolean }> { throw 0 } }',
    'Q.tryTake() must return a union with `ok`',
  ],
  [
    'a try form with undefined',
    'type A = { ok: true } | { ok: false } | undefined\nexport class Q { tryTake(): Promise<A> { throw 0 } }',
    'Q.tryTake() must return a union with `ok`',
  ],
  [
    'a try form that is never refused',
    'export class Q { tryTake(): Promise<{ ok: true }> { throw 0 } }',
    'Q.tryTake() must return a union with `ok`',
  ],
  ['a boolean as a result', 'export class Q { resume(): Promise<boolean> { throw 0 } }', 'returns a bare'],
  ['true as a result', 'export class Q { resume(): Promise<true | undefined> {} }', 'returns a bare'],
  [
    'a boolean as a result without a promise',
    'export interface Q { resume(): boolean }',
    'Q.resume() returns a bare',
  ],
  [
    'a number as a result',
    'export class Q { resume(): Promise<number | undefined> { throw 0 } }',
    'returns a bare',
  ],
  [
    'an array as a result',
    'type Rows = readonly X[]\nexport class Jobs { history(): Promise<Rows> { throw 0 } }',
    'return Promise<Page<…>>',
  ],
  [
    'an Array as a result',
    'export class Counters { verify(): Promise<Array<X>> { throw 0 } }',
    'return Promise<Page<…>>',
  ],
  [
    'a list without a page',
    'export class Locks { list(filter: F): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'a list under other names',
    'interface P { limit: number; cursor: string }\nexport class Locks { list(page: P, filter: P): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'a list without a filter',
    'interface P { limit: number; cursor: string }\nexport class Jobs { dead(which: F, page: P): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'a list with a page under another name',
    'interface P { limit: number; cursor: string }\nexport class Jobs { dead(filter: F, options: P): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'a list with more arguments',
    'interface P { limit: number; cursor: string }\nexport class Locks { list(filter: F, page: P, o: O): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'a list with a page that has no limit',
    'export class Locks { list(filter: F, page: { cursor: string }): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'a list without a promise',
    'interface P { limit: number; cursor: string }\nexport class Locks { list(filter: F, page: P): Page<X> { throw 0 } }',
    'Promise<Page<…>>',
  ],
  [
    'a list with a page that has no cursor',
    'export class Jobs { dead(filter: F, page: { limit: number }): Promise<Page<X>> { throw 0 } }',
    'must take (filter, page)',
  ],
  [
    'an if… option without a verb',
    "const all = ['wait', 'open'] as const\nexport interface O { readonly ifDown?: (typeof all)[number] | undefined }",
    "O.ifDown must not be 'open'",
  ],
  [
    'an if… option with the type of another field',
    "interface X { policy: 'open' }\nexport interface O { readonly ifDown: X['policy'] }",
    "O.ifDown must not be 'open'",
  ],
  [
    'an on… option that is no function',
    "type P = 'free' | 'keep'\nexport interface O { readonly onFailure?: P | undefined }",
    'O.onFailure must be named if…',
  ],
  [
    'a when… option',
    "export interface O { readonly whenDown?: 'allow' | undefined }",
    'O.whenDown must be named if…',
  ],
  [
    'a try form that is a field',
    'interface Try { (name: string): Promise<string> }\nexport class D { readonly tryOnce: Try }',
    'D.tryOnce() must return a union with `ok`',
  ],
  [
    'a positional signal',
    'export class M { run(signal?: AbortSignal): void {} }',
    'M.run(signal) is an AbortSignal',
  ],
  [
    'a positional signal in a callback',
    'export interface O { readonly load: (abort: AbortSignal | undefined) => void }',
    'O.load(abort) is an AbortSignal',
  ],
  [
    'a time without At',
    'export interface O { readonly expiry?: Date | undefined }',
    'must end in At or Until',
  ],
  ['a getter without At', 'export class L { get expiry(): Date { return x } }', 'must end in At or Until'],
  [
    'a getter of an interface without At',
    'export interface L { get expiry(): Date }',
    'must end in At or Until',
  ],
  ['seconds', 'export interface Report { readonly seconds: number }', 'must be in milliseconds'],
  ['other seconds', 'export interface O { readonly waitSeconds: number }', 'must be in milliseconds'],
  [
    'seconds as a parameter',
    'export function wait(seconds: number): void {}',
    'wait(seconds) must be in mil',
  ],
  ['seconds with a default', 'export function wait(seconds = 5): void {}', 'wait(seconds) must be in mil'],
  ['a duration as a parameter', 'export function wait(timeout: number): void {}', 'must end in Ms'],
  ['a duration that is only ms', 'export interface Fault { readonly ms: number }', 'must say which duration'],
  [
    'an old name of an option',
    'export interface O { readonly maxLoadMs: number }',
    'must be named timeoutMs',
  ],
  [
    'a result union without ok, as a result',
    'interface A { readonly won: true }\nexport function take(): Promise<A | { readonly won: false }> { throw 0 }',
    'take() is told apart by `won`',
  ],
]

describe('finds', () => {
  it.each(breaches)('%s', (_, source, problem) => {
    expect(breachesIn(source)).toEqual([expect.stringContaining(problem)])
  })

  it.each(reached)('a field %s', (_, source, problem) => {
    expect(breachesIn(source)).toEqual([expect.stringContaining(problem)])
  })

  it.each(calls)('a breach in %s', (_, source, problem) => {
    expect(breachesIn(source)).toEqual([expect.stringContaining(problem)])
  })

  it.each(shapes)('%s', (_, source, problem) => {
    expect(breachesIn(source)).toEqual([expect.stringContaining(problem)])
  })

  it('what another file exports, also under another name', () => {
    const found = breachesAcross({
      'src/index.ts': "export { type A as B } from './a.js'\nexport * from './c.js'",
      'src/a.ts':
        'export interface A { readonly by: string }\nexport interface Hidden { readonly by: string }',
      'src/c.ts': "export * from './d.js'",
      'src/d.ts': 'export interface D { readonly wait: boolean }',
    })
    expect(found).toEqual([
      expect.stringMatching(/^src\/a\.ts:1: A\.by/),
      expect.stringMatching(/^src\/d\.ts:1: D\.wait/),
    ])
  })

  it('what an export reaches in other files', () => {
    const found = breachesAcross({
      'src/index.ts': "export type { O } from './claims/o.js'",
      'src/claims/o.ts':
        "import type { Common as Base } from '../common.js'\nimport pg from 'pg'\nexport interface O extends Base { readonly pool: pg.Pool; readonly part: Pick<Base, 'by'> }",
      'src/common.ts':
        "export { type Shared as Common } from './shared.js'\nexport interface Unused { by: string }",
      'src/shared.ts':
        "\nexport interface Shared { readonly by: string; readonly last: import('./last.js').Last }",
      'src/last.ts': 'export interface Last { readonly wait: boolean }',
    })
    expect(found).toEqual([
      expect.stringMatching(/^src\/shared\.ts:2: Shared\.by/),
      expect.stringMatching(/^src\/last\.ts:1: Last\.wait/),
    ])
  })
})

it('finds a transaction that is imported under another name', () => {
  const found = breachesAcross({
    'src/index.ts': "import type { Tx as T } from './tx.js'\nexport function lock(own: T): void {}",
    'src/tx.ts': 'export interface Tx { query(text: string): void }',
  })
  expect(found).toEqual([expect.stringContaining('field `tx`')])
})

describe('accepts', () => {
  it.each([
    ['a function that users write', 'export interface O { readonly action: (row: R, tx: Tx) => void }'],
    ['a callback with a transaction', 'export class D { once(spec: S, fn: (tx: Tx) => void): void {} }'],
    [
      'a named callback with a transaction',
      'export type Undo = (tx: Tx) => Promise<boolean>\nexport class D { undo(fn: Undo): void {} }',
    ],
    ['a transaction as the subject', 'export interface Lock { guard(tx: Tx, options?: G): Promise<void> }'],
    [
      'the function first where it is the subject',
      'export class D { transaction(fn: () => void, o: O): void {} }',
    ],
    [
      'options that may be undefined',
      'export class D { lock(name: string, options: { n: 1 } | undefined, fn: () => void): void {} }',
    ],
    [
      'options that an overload leaves out',
      'export class D { lock(name: string, fn: () => void): void; lock(name: string, options: O, fn: () => void): void; lock(): void {} }',
    ],
    [
      'options with a default',
      'export function lock(name: string, options: O = {}, fn: () => void): void {}',
    ],
    ['no options', 'export function lock(name: string, key: string, fn: () => void): void {}'],
    [
      'a function in place of a value',
      'export function limited(limit: L | (() => L), options: { n: 1 }): void {}',
    ],
    [
      'an implementation of overloads',
      'export function lock(name: string): void\nexport function lock(tx: any): void {}\nexport class D { lock(name: string): void; lock(tx: any): void {} }',
    ],
    [
      'a spec as the subject',
      'export class D { once(spec: { key: string }, fn: () => void): void {} undo(spec: { n: 1 }): void {} }',
    ],
    ['a lock that is null', 'export interface L { tryLock(name: string): Promise<Lock | null> }'],
    [
      'a try form through references',
      'interface No { ok: false }\ntype Yes<T> = { v: T } & { ok: true }\ntype A<T> = Readonly<Yes<T>> | No\nexport class Q { tryTake(): Promise<A<1>> { throw 0 } }',
    ],
    [
      'a try form of several, by a type parameter',
      "interface R { take: string; tryTake: { ok: true } | { ok: false } }\ninterface Call<F extends keyof R> { (name: string): Promise<R[F]> }\nexport class Q { readonly tryTake: Call<'tryTake'> = (name) => {} }",
    ],
    ['a predicate', 'export class D { isOpen(): boolean { return true } hasMore(): Promise<boolean> {} }'],
    ['what needs no promise', 'export class D { count(): number {} names(): string[] {} }'],
    ['kinds', "export type Fault = { kind: 'cut'; ms: '1' } | { kind: 'reset' }"],
    ['a list that its input bounds', 'export class Kv { getMany(keys: K): Promise<X[]> { throw 0 } }'],
    [
      'a list with its own page',
      'interface P { limit: number; cursor: string }\ninterface Q extends P { tx: Tx }\nexport class Kv { list(filter: F = {}, page: Q = {}): Promise<Page<X>> { throw 0 } }',
    ],
    [
      'verbs, numbers and functions',
      "export interface O { ifDown: 'fail' | 'serve-stale'; ifVersion: number; onLost: 'retry' | (() => void) }",
    ],
    ['times', 'export interface O { from: Date; since?: Date | undefined; leaseUntil: Date | null }'],
    ['a time without a name of its own', 'export class Clock { freeze(at: Date): void {} now(): Date {} }'],
    ['a count of what happened', 'export class E { readonly attempts: number }\nexport function f(): E {}'],
    [
      'a count in an event',
      "interface E { 'dibs:lost': { attempts: number } }\nexport function onEvent<N extends keyof E>(fn: (payload: E[N]) => void): void {}",
    ],
    [
      'time to live of stored data',
      'export interface KvWriteOptions { readonly ttlMs?: number | undefined }',
    ],
    ['ok', 'export type A = { readonly ok: true } | { readonly ok: false }'],
    ['private parts', 'export class D { #tx(tx: Tx): void {} private adjust(tx: Tx): void {} }'],
    ['types of packages', "import type { X } from 'pg'\nexport interface O extends X { y: X; z: pg.Pool }"],
    [
      'a field that is left out',
      "interface X { by: string; n: number }\nexport type O = Pick<X, 'n'> & Omit<X, 'by'>",
    ],
  ])('%s', (_, source) => {
    expect(breachesIn(source)).toEqual([])
  })
})
