import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { findBreaches } from './conventions.mjs'

const src = join(import.meta.dirname, '../src')

it.each(['index.ts', 'http/index.ts', 'testing/index.ts'])(
  'what %s exports follows the conventions',
  (entry) => {
    expect(findBreaches(join(src, entry))).toEqual([])
  },
)

const breachesIn = (source: string): string[] => findBreaches('src/index.ts', () => source)

/** A breach in each form that a part of the API had before. */
const breaches: [name: string, source: string, problem: string][] = [
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
    'export class Locks { list(filter: F): Promise<readonly LockInfo[]> { throw 0 } }',
    'Promise<Page<…>>',
  ],
  [
    'a try form that throws',
    'export class Quota { take(): void {} tryTake(): Promise<QuotaTake> { throw 0 } reserve(): void {} tryReserve(): Promise<HoldAttempt> { throw 0 } }',
    'tryTake() must return a union with `ok`',
  ],
  [
    'a claim without its try form',
    'export class RateLimit { take(): void {} }',
    'RateLimit has no tryTake()',
  ],
]

describe('finds', () => {
  it.each(breaches)('%s', (_, source, problem) => {
    expect(breachesIn(source)).toEqual([expect.stringContaining(problem)])
  })

  it('what another file exports, also under another name', () => {
    const files: Record<string, string> = {
      'src/index.ts': "export { type A as B } from './a.js'\nexport * from './c.js'",
      'src/a.ts':
        'export interface A { readonly by: string }\nexport interface Hidden { readonly by: string }',
      'src/c.ts': "export * from './d.js'",
      'src/d.ts': 'export interface D { readonly wait: boolean }',
    }
    const found = findBreaches('src/index.ts', (file) => files[file] ?? '')
    expect(found).toEqual([
      expect.stringMatching(/^src\/a\.ts: A\.by/),
      expect.stringMatching(/^src\/d\.ts: D\.wait/),
    ])
  })
})

describe('accepts', () => {
  it.each([
    ['a function that users write', 'export interface O { readonly action: (row: R, tx: Tx) => void }'],
    ['a transaction as the subject', 'export interface Lock { guard(tx: Tx, options?: G): Promise<void> }'],
    [
      'the function first where it is the subject',
      'export class D { transaction(fn: () => void, o: O): void {} }',
    ],
    ['a lock that is null', 'export interface L { tryLock(name: string): Promise<Lock | null> }'],
    [
      'time to live of stored data',
      'export interface KvWriteOptions { readonly ttlMs?: number | undefined }',
    ],
    ['ok', 'export type A = { readonly ok: true } | { readonly ok: false }'],
    ['private parts', 'export class D { #tx(tx: Tx): void {} private adjust(tx: Tx): void {} }'],
  ])('%s', (_, source) => {
    expect(breachesIn(source)).toEqual([])
  })
})
