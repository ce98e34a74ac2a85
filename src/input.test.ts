import { describe, expect, it } from 'vitest'
import { openClaims } from '../test/claims/open-claims.js'
import type { Dibs } from './dibs.js'
import { etagOf } from './http/index.js'
import { claim, DibsError, InvalidInputError, keyOf, onEvent, retryOnConflict, SnoozeError } from './index.js'
import { crashLoop, createTestSchema, explore, PgProxy, recordEffects } from './testing/index.js'

// Every public call with input of the wrong kind, as callers without types give it: the answer is a typed error that names the
// argument, never a TypeError from inside, and never a call that silently does something else. Proxies whose traps throw are left
// out: their own error is as good as ours.

const fixture = openClaims()

const refuse = () => {
  throw new Error('thrown by the value')
}

const cyclic: Record<string, unknown> = {}
cyclic.self = cyclic

/** Values that break code which looks at them, or writes them into a message, without care. */
const oddValues: Readonly<Record<string, unknown>> = {
  null: null,
  true: true,
  'a negative number': -1,
  'a fraction': 1.5,
  NaN: Number.NaN,
  Infinity: Number.POSITIVE_INFINITY,
  'a bigint': 10n,
  'an empty string': '',
  'a string': 'serializable',
  'a long string': 'x'.repeat(100_000),
  'a string with NUL': 'a\0b',
  'a symbol': Symbol('odd'),
  'an array': [],
  'an array of an odd value': [Symbol('odd')],
  'an empty object': {},
  'an object without a prototype': Object.create(null),
  'a cyclic object': cyclic,
  'a Map': new Map(),
  'an invalid Date': new Date(Number.NaN),
  'an object that cannot be written': { toString: refuse, toJSON: refuse, [Symbol.toPrimitive]: refuse },
}

type Loose = (...args: never[]) => unknown

interface Call {
  readonly run: Loose
  readonly args: readonly unknown[]
  /** Where in `args` the options are. */
  readonly options?: number
}

const call = (run: Loose, args: readonly unknown[], options?: number): Call =>
  options === undefined ? { run, args } : { run, args, options }

const work = async () => 1
const on = (find: (dibs: Dibs) => unknown, name: string): Loose =>
  ((...args: unknown[]) => {
    const owner = find(fixture.dibs)
    return Reflect.apply(Reflect.get(Object(owner), name), owner, args)
  }) as Loose
const root = (name: string): Loose => on((dibs) => dibs, name)
const rows = (name: string): Loose => on((dibs) => dibs.rows, name)
const kv = (name: string): Loose => on((dibs) => dibs.kv, name)
const quota = (name: string): Loose => on((dibs) => dibs.quota('q', { limit: 5 }), name)
const rate = (name: string): Loose =>
  on((dibs) => dibs.rateLimit('r', { algorithm: 'gcra', limit: 5, perMs: 1_000 }), name)
const jobs = (name: string): Loose => on((dibs) => dibs.jobs({ email: {} }), name)
const withTx = (name: string): Loose =>
  ((...args: unknown[]) =>
    fixture.dibs.transaction(async (tx) => Reflect.apply(Reflect.get(tx, name), tx, args))) as Loose
let aggregates = 0
const aggregate = (name: string): Loose =>
  on(
    (dibs) =>
      dibs.aggregate(`a${aggregates++}`, {
        parent: 'nowhere',
        child: 'nowhere',
        foreignKey: 'x',
        columns: { n: 'count(*)' },
      }),
    name,
  )
const underLock = (name: string): Loose =>
  ((...args: unknown[]) =>
    fixture.dibs.withLock(keyOf('odd', name), async (lock) =>
      Reflect.apply(Reflect.get(lock, name), lock, args),
    )) as Loose

const calls: Readonly<Record<string, Call>> = {
  transaction: call(root('transaction'), [work, {}], 1),
  'tx.savepoint': call(withTx('savepoint'), [work]),
  'tx.query': call(withTx('query'), ['select 1', []]),
  'tx.afterCommit': call(withTx('afterCommit'), [work]),
  retryOnConflict: call(retryOnConflict as Loose, [work, {}], 1),
  onEvent: call(onEvent as Loose, ['dibs:lock.lost', work]),
  keyOf: call(keyOf as Loose, ['a', 1]),
  SnoozeError: call(((delayMs: never) => new SnoozeError(delayMs)) as Loose, [1]),
  'kv.set': call(kv('set'), ['key', 1, {}], 2),
  'kv.setIfAbsent': call(kv('setIfAbsent'), ['key', 1, {}], 2),
  'kv.get': call(kv('get'), ['key', {}], 1),
  'kv.getMany': call(kv('getMany'), [['key'], {}], 1),
  'kv.compareAndSet': call(kv('compareAndSet'), ['key', 1, 2, {}], 3),
  'kv.delete': call(kv('delete'), ['key', {}], 1),
  'kv.patch': call(kv('patch'), ['key', { a: 1 }, {}], 2),
  'kv.list': call(kv('list'), [{ prefix: 'key' }, {}], 1),
  once: call(root('once'), [{ scope: 'odd', key: 'once' }, work], 0),
  onceDetailed: call(root('onceDetailed'), [{ scope: 'odd', key: 'detailed' }, work], 0),
  'once, leased': call(root('once'), [{ scope: 'odd', key: 'leased', mode: 'leased' }, work], 0),
  operation: call(root('operation'), ['odd', {}, work], 1),
  'operation.run': call(
    on((dibs) => dibs.operation(`run${aggregates++}`, {}, work), 'run'),
    [{}, { key: 'run' }],
    1,
  ),
  'operation.tryRun': call(
    on((dibs) => dibs.operation(`run${aggregates++}`, {}, work), 'tryRun'),
    [{}, { key: 'run' }],
    1,
  ),
  singleton: call(root('singleton'), [{ scope: 'odd', per: 'day', timeZone: 'UTC' }, work], 0),
  voidSlot: call(
    root('voidSlot'),
    [{ scope: 'odd', slot: { id: '00000000-0000-0000-0000-000000000000', key: 'x' } }, work],
    0,
  ),
  quota: call(root('quota'), ['q', { limit: 5 }], 1),
  'quota.take': call(quota('take'), ['subject', 1, {}], 2),
  'quota.tryTake': call(quota('tryTake'), ['subject', 1, {}], 2),
  'quota.reserve': call(quota('reserve'), ['subject', 1, { leaseMs: 1_000 }], 2),
  'quota.settle': call(quota('settle'), ['id', 1, {}], 2),
  'quota.void': call(quota('void'), ['id', {}], 1),
  'quota.refund': call(quota('refund'), ['id', {}], 1),
  'quota.peek': call(quota('peek'), ['subject', {}], 1),
  'quota.verify': call(quota('verify'), [{}, {}], 0),
  'quota.claim': call(quota('claim'), ['subject', 1, {}], 2),
  rateLimit: call(root('rateLimit'), ['r', { algorithm: 'gcra', limit: 5, perMs: 1_000 }], 1),
  'rateLimit.take': call(rate('take'), ['subject', 1, {}], 2),
  'rateLimit.tryTake': call(rate('tryTake'), ['subject', 1, {}], 2),
  'rateLimit.peek': call(rate('peek'), ['subject', {}], 1),
  'rateLimit.claim': call(rate('claim'), ['subject', 1, {}], 2),
  acquire: call(root('acquire'), [[claim.lock('odd')], {}, work], 1),
  tryAcquire: call(root('tryAcquire'), [[claim.lock('odd')], {}, work], 1),
  tryOnce: call(root('tryOnce'), [{ scope: 'odd', key: 'x' }, work], 0),
  trySingleton: call(root('trySingleton'), [{ scope: 'odd', per: 'day', timeZone: 'UTC' }, work], 0),
  'quota.tryReserve': call(quota('tryReserve'), ['subject', 1, { leaseMs: 1_000 }], 2),
  'claim.once': call(claim.once as Loose, [{ scope: 'odd', key: 'x' }], 0),
  'claim.singleton': call(claim.singleton as Loose, [{ scope: 'odd', per: 'day', timeZone: 'UTC' }], 0),
  'claim.lock': call(claim.lock as Loose, ['odd']),
  'claims.get': call(
    on((dibs) => dibs.claims, 'get'),
    [{ scope: 'odd', key: 'x' }],
  ),
  'claims.list': call(
    on((dibs) => dibs.claims, 'list'),
    [{}],
    0,
  ),
  'claims.forget': call(
    on((dibs) => dibs.claims, 'forget'),
    [{ scope: 'odd', key: 'x' }, {}],
    1,
  ),
  'claims.resolve': call(
    on((dibs) => dibs.claims, 'resolve'),
    [{ scope: 'odd', key: 'x' }, 'retry', {}],
    2,
  ),
  lock: call(root('lock'), ['odd:lock', { waitMs: 0 }], 1),
  tryLock: call(root('tryLock'), ['odd:tryLock', {}], 1),
  withLock: call(root('withLock'), ['odd:withLock', {}, work], 1),
  'lock.guard': call(underLock('guard'), [{}, {}], 1),
  'lock.writeFenced': call(underLock('writeFenced'), [{ query: work }, { table: 'nowhere' }], 1),
  'locks.list': call(
    on((dibs) => dibs.locks, 'list'),
    [{}],
    0,
  ),
  'locks.inspect': call(
    on((dibs) => dibs.locks, 'inspect'),
    ['odd'],
  ),
  'locks.forceRelease': call(
    on((dibs) => dibs.locks, 'forceRelease'),
    ['odd', {}],
    1,
  ),
  elect: call(root('elect'), ['odd', {}], 1),
  singleFlight: call(root('singleFlight'), ['odd', {}, work], 1),
  'singleFlight.forget': call(
    on((dibs) => dibs.singleFlight, 'forget'),
    ['odd'],
  ),
  'rows.lock': call(
    ((table: unknown, ids: unknown, options: object) =>
      fixture.dibs.transaction((tx) =>
        Reflect.apply(fixture.dibs.rows.lock, undefined, [
          table,
          ids,
          Object.getPrototypeOf(Object(options)) === Object.prototype ? { tx, ...options } : options,
        ]),
      )) as Loose,
    ['nowhere', [1], {}],
    2,
  ),
  'rows.update': call(rows('update'), ['nowhere', { id: 1, version: 1 }, { a: 1 }, {}], 3),
  'rows.lastWriteWins': call(rows('lastWriteWins'), ['nowhere', 1, { a: 1 }, {}], 3),
  'rows.insertOnce': call(rows('insertOnce'), ['nowhere', ['a'], { a: 1 }, {}], 3),
  'rows.transition': call(rows('transition'), ['nowhere', 1, { from: 'a', to: 'b' }, {}], 3),
  'rows.claim': call(rows('claim'), ['nowhere', {}], 1),
  'rows.adjust': call(rows('adjust'), ['nowhere', 1, { a: 1 }, {}], 3),
  aggregate: call(
    root('aggregate'),
    ['odd', { parent: 'p', child: 'c', foreignKey: 'x', columns: { n: 'count(*)' } }],
    1,
  ),
  'aggregate.recompute': call(aggregate('recompute'), [1, {}], 1),
  'aggregate.markDirty': call(aggregate('markDirty'), [1, {}], 1),
  'aggregate.refresh': call(aggregate('refresh'), [{}], 0),
  'aggregate.verify': call(aggregate('verify'), [{}], 0),
  'aggregate.transition': call(aggregate('transition'), [1, { from: 'a', to: 'b' }, { add: {} }], 2),
  'aggregate.derived': call(aggregate('derived'), ['view', {}], 1),
  monitor: call(root('monitor'), ['odd', { table: 'nowhere' }], 1),
  'monitor.run': call(
    on(
      (dibs) =>
        dibs.monitor(`m${aggregates++}`, {
          ...{ table: 'nowhere', stuck: 'busy', timeColumn: 'at', olderThanMs: 1_000 },
          ...{ action: 'requeue', requeueTo: 'new' },
        }),
      'run',
    ),
    [{}],
    0,
  ),
  maintain: call(root('maintain'), [{ once: true }], 0),
  jobs: call(root('jobs'), [{ email: {} }]),
  'jobs.add': call(jobs('add'), ['email', {}, {}], 2),
  'jobs.addMany': call(jobs('addMany'), [[{ name: 'email', input: {} }], {}], 1),
  'jobs.handle': call(jobs('handle'), [{ email: work }]),
  'jobs.work': call(jobs('work'), [{ email: work }, {}], 1),
  'jobs.get': call(jobs('get'), ['1']),
  'jobs.result': call(jobs('result'), ['1', { waitMs: 0 }], 1),
  'jobs.history': call(jobs('history'), ['1', {}], 1),
  'jobs.cancel': call(jobs('cancel'), ['1', {}], 1),
  'jobs.dead': call(jobs('dead'), [{}, {}], 1),
  'jobs.redrive': call(jobs('redrive'), ['1']),
  'jobs.discard': call(jobs('discard'), ['1']),
  work: call(root('work'), [[], {}], 1),
  'queues.pause': call(
    on((dibs) => dibs.queues, 'pause'),
    ['odd', {}],
    1,
  ),
  'queues.list': call(
    on((dibs) => dibs.queues, 'list'),
    [{}, {}],
    1,
  ),
  'workers.list': call(
    on((dibs) => dibs.workers, 'list'),
    [{}, {}],
    1,
  ),
  'queues.resume': call(
    on((dibs) => dibs.queues, 'resume'),
    ['odd'],
  ),
  etagOf: call(etagOf as Loose, [1, {}], 1),
  recordEffects: call(recordEffects as Loose, [{}], 0),
  explore: call(explore as Loose, [{}], 0),
  crashLoop: call(crashLoop as Loose, [{}], 0),
  createTestSchema: call(((name: never) => createTestSchema(fixture.pool, name)) as Loose, ['x']),
  'PgProxy.start': call(
    ((options: never) => PgProxy.start(options)) as Loose,
    [{ url: 'postgres://localhost' }],
    0,
  ),
}

/** Runs a call and returns its value, or the error it throws or rejects with. Releases what the call opened. */
async function outcomeOf({ run }: Call, args: readonly unknown[]): Promise<unknown> {
  try {
    const value = await run(...(args as never[]))
    const held = Object(value)
    if (Symbol.asyncDispose in held) await held[Symbol.asyncDispose]()
    else if (typeof held.stop === 'function') await held.stop()
    return value
  } catch (error) {
    return error ?? new Error(`${error} was thrown`)
  }
}

const replaced = (args: readonly unknown[], at: number, value: unknown): unknown[] =>
  args.map((arg, n) => (n === at ? value : arg))

const show = (error: unknown): string =>
  error instanceof Error ? `${error.name}: ${error.message.slice(0, 200)}` : 'a value'

describe('an unknown option, or a value in place of the options, is refused by', () => {
  const withOptions = Object.entries(calls).filter(([, { options }]) => options !== undefined)
  it.each(withOptions)('%s', async (_, one) => {
    const at = one.options as number
    const unknown = await outcomeOf(one, replaced(one.args, at, { ...Object(one.args[at]), misspelled: 1 }))
    expect(unknown, show(unknown)).toBeInstanceOf(InvalidInputError)
    expect((unknown as Error).message).toMatch(/^Unknown option "(.+\.)?misspelled"\. /)
    expect((unknown as InvalidInputError).field).toMatch(/misspelled$/)
    for (const tx of [fixture.pool, { execute: work }]) {
      const error = await outcomeOf(one, replaced(one.args, at, tx))
      expect(error, show(error)).toBeInstanceOf(InvalidInputError)
    }
    for (const value of ['serializable', 7, [], null, work, 1n, Symbol('x')]) {
      const error = await outcomeOf(one, replaced(one.args, at, value))
      expect(error, `${String(value)}: ${show(error)}`).toBeInstanceOf(InvalidInputError)
    }
  })
})

describe('a transaction in place of the options', () => {
  it.each(['once', 'kv.set', 'quota.take', 'rows.adjust', 'jobs.add', 'acquire'])(
    'is told as such by %s',
    async (name) => {
      const one = calls[name] as Call
      await fixture.dibs.transaction(async (tx) => {
        const kysely = { executeQuery: work, isTransaction: true }
        const knex = Object.assign(() => {}, { raw: work })
        // The subject of `once` is an object, so a function is refused as such.
        for (const given of [tx, fixture.pool, kysely, ...(name === 'once' ? [] : [knex])]) {
          const error = await outcomeOf(one, replaced(one.args, one.options as number, given))
          expect(error, show(error)).toMatchObject({
            message:
              '`options` must be an object of options, not a transaction. Pass the transaction as `{ tx }`.',
          })
        }
      })
    },
  )
})

it('an option that is misspelled is told with the one that was meant', async () => {
  await expect(fixture.dibs.once({ scope: 's', key: 'k', fingerPrint: 1 } as never, work)).rejects.toThrow(
    /^Unknown option "fingerPrint"\. Did you mean fingerprint\? Expected one of: scope, key, /,
  )
})

describe('an odd value never leads to an untyped error from', () => {
  it.each(Object.entries(calls))('%s', async (_, one) => {
    const untyped: string[] = []
    const attempt = async (what: string, args: readonly unknown[]) => {
      const outcome = await outcomeOf(one, args)
      if (outcome instanceof Error && !(outcome instanceof DibsError))
        untyped.push(`${what}: ${show(outcome)}`)
      if (outcome instanceof InvalidInputError && outcome.message.length > 2_000)
        untyped.push(`${what}: a message of ${outcome.message.length} characters`)
    }
    for (const [kind, value] of Object.entries(oddValues)) {
      for (const at of one.args.keys())
        await attempt(`argument ${at} is ${kind}`, replaced(one.args, at, value))
    }
    expect(untyped).toEqual([])
  })
})

/** Each option of each call by name, with odd values. */
const optionNames: Readonly<Record<string, readonly string[]>> = {
  transaction: ['isolation', 'deadlineMs', 'maxAttempts'],
  retryOnConflict: ['deadlineMs', 'maxAttempts', 'signal'],
  'kv.set': ['ttlMs', 'tx'],
  'kv.delete': ['ifVersion', 'tx'],
  'kv.patch': ['remove', 'ttlMs', 'tx'],
  'kv.list': ['cursor', 'limit', 'tx'],
  once: [
    'scope',
    'key',
    'fingerprint',
    'mode',
    'tx',
    'keepMs',
    'result',
    'isTerminal',
    'waitMs',
    'maxAttempts',
  ],
  'once, leased': ['leaseMs', 'onAmbiguous', 'waitMs', 'requestId', 'maxAttempts'],
  operation: ['input', 'result', 'maxAttempts', 'leaseMs', 'keepMs', 'onAmbiguous', 'isTerminal'],
  'operation.run': ['key', 'waitMs', 'requestId'],
  singleton: [
    'scope',
    'per',
    'timeZone',
    'holder',
    'ifFailed',
    'keepMs',
    'maxAttempts',
    'mode',
    'waitMs',
    'tx',
  ],
  voidSlot: ['scope', 'slot', 'frees', 'tx'],
  quota: ['limit', 'per', 'timeZone', 'late'],
  'quota.take': ['id', 'limit', 'timeZone', 'tx'],
  'quota.reserve': ['id', 'leaseMs', 'limit', 'tx'],
  'quota.refund': ['amount', 'tx'],
  'quota.verify': ['subject'],
  rateLimit: ['algorithm', 'limit', 'perMs', 'burst', 'waitMs', 'ifDown', 'downAfterMs'],
  acquire: ['mode', 'tx', 'waitMs', 'leaseMs', 'deadlineMs', 'requestId'],
  'claims.get': ['scope', 'operation', 'singleton', 'key'],
  'claims.list': ['scope', 'operation', 'singleton', 'status', 'held', 'gaveUp'],
  'claims.forget': ['force'],
  'claims.resolve': ['keepMs'],
  lock: ['leaseMs', 'waitMs', 'permits', 'maxHoldMs', 'holder', 'signal'],
  'locks.list': ['prefix'],
  'locks.forceRelease': ['ifFence'],
  elect: ['leaseMs', 'onElected', 'onLost', 'holder'],
  singleFlight: ['ttlMs', 'staleMs', 'waitMs', 'leaseMs', 'ifBusy', 'result', 'signal'],
  'rows.lock': ['mode', 'ifLocked', 'waitMs', 'ifMissing'],
  'rows.update': ['tx', 'versionColumn', 'waitMs'],
  'rows.claim': ['where', 'order', 'limit', 'leaseColumn', 'fenceColumn', 'leaseMs', 'set', 'tx'],
  'rows.adjust': ['tx', 'min', 'max', 'versionColumn', 'waitMs'],
  aggregate: ['parent', 'child', 'foreignKey', 'columns'],
  'aggregate.verify': ['repair', 'batch', 'signal'],
  'aggregate.derived': ['tx', 'create', 'waitMs'],
  monitor: ['table', 'stuck', 'timeColumn', 'olderThanMs', 'action', 'everyMs', 'batch'],
  maintain: ['once', 'everyMs'],
  'jobs.add': ['runAt', 'delayMs', 'priority', 'expiresAt', 'correlationId', 'tx', 'wake'],
  'jobs.result': ['waitMs'],
  'jobs.cancel': ['reason'],
  'jobs.dead': ['limit', 'cursor'],
  work: ['concurrency', 'prefetch', 'queues', 'pollMs', 'drainMs', 'heartbeatThread'],
  'queues.pause': ['pausedBy'],
  'queues.list': ['limit', 'cursor'],
  'workers.list': ['limit', 'cursor'],
  explore: ['pool', 'url', 'actors', 'bound', 'seed', 'schedule', 'isolation'],
  crashLoop: ['pool', 'url', 'run', 'bound', 'modes', 'errors', 'effects'],
  'PgProxy.start': ['url', 'seed'],
}

describe('an odd value of an option never leads to an untyped error from', () => {
  it.each(Object.entries(optionNames))('%s', async (name, options) => {
    const one = calls[name] as Call
    const at = one.options ?? 0
    const untyped: string[] = []
    for (const [kind, value] of Object.entries(oddValues)) {
      for (const option of options) {
        const given = { ...Object(one.args[at]), [option]: value }
        const outcome = await outcomeOf(one, replaced(one.args, at, given))
        if (outcome instanceof Error && !(outcome instanceof DibsError))
          untyped.push(`${option} is ${kind}: ${show(outcome)}`)
      }
    }
    expect(untyped).toEqual([])
  })
})

describe('input that was once accepted in silence is refused:', () => {
  it.each([
    [
      'the isolation level as a string',
      'transaction',
      [work, 'serializable'],
      '`options` must be an object, not a string.',
    ],
    [
      'a misspelled isolation level',
      'transaction',
      [work, { isolationLevel: 'serializable' }],
      'Unknown option "isolationLevel". Expected one of: isolation, deadlineMs, maxAttempts.',
    ],
    [
      'a savepoint without a function',
      'tx.savepoint',
      [undefined],
      '`fn` must be a function, not undefined.',
    ],
    [
      'a callback of query',
      'tx.query',
      ['select 1', work],
      '`callback` is not supported by query; await the promise that it returns.',
    ],
    [
      'a callback after the values of query',
      'tx.query',
      ['select 1', [], work],
      '`callback` is not supported by query; await the promise that it returns.',
    ],
    [
      'values of query that are no array',
      'tx.query',
      ['select $1', 'x'],
      '`values` must be an array, not a string.',
    ],
    [
      'gaveUp that is no boolean',
      'claims.list',
      [{ gaveUp: 'no' }],
      '`gaveUp` must be true or false, not "no".',
    ],
    [
      'an event that does not exist',
      'onEvent',
      ['dibs:lock.lots', work],
      '`name` must be the name of an event such as "dibs:job.failed", not "dibs:lock.lots".',
    ],
    [
      'a listener that is no function',
      'onEvent',
      ['dibs:lock.lost', {}],
      '`listener` must be a function, not a plain object.',
    ],
    [
      'an Error in the input of a job',
      'jobs.add',
      ['email', { e: new Error('x') }],
      '`input.e` is an Error, which JSON cannot store. Convert it first, to plain data.',
    ],
    [
      'a Buffer in a value',
      'kv.set',
      ['key', [Buffer.from('x')]],
      '`value[0]` is a Buffer, which JSON cannot store. Convert it first, for example to a base64 string.',
    ],
    [
      'a Map in the input of an operation',
      'operation.run',
      [{ m: new Map() }, { key: 'x' }],
      '`input.m` is a Map, which JSON cannot store. Convert it first, to plain data.',
    ],
    [
      'a RegExp in the outcome of once',
      'once',
      [{ scope: 'odd', key: 'r' }, async () => ({ r: /x/ })],
      '`outcome.r` is a RegExp, which JSON cannot store. Convert it first, to plain data.',
    ],
    [
      'a Set in the outcome of once, leased',
      'once, leased',
      [{ scope: 'odd', key: 's', mode: 'leased' }, async () => new Set()],
      '`outcome` is a Set, which JSON cannot store. Convert it first, to plain data.',
    ],
    [
      'a Promise in the outcome of singleton',
      'singleton',
      [{ scope: 'odd:p', per: 'day', timeZone: 'UTC' }, async () => [Promise.resolve()]],
      '`outcome[0]` is a Promise, which JSON cannot store. Convert it first, to plain data.',
    ],
    [
      'Headers in the outcome of acquire',
      'acquire',
      [[claim.once({ scope: 'odd', key: 'h' })], async () => new Headers()],
      '`outcome` is a Headers, which JSON cannot store. Convert it first, to plain data.',
    ],
    [
      'an Error in a value of singleFlight',
      'singleFlight',
      ['odd:e', { ttlMs: 1_000 }, async () => new Error('x')],
      '`value` is an Error, which JSON cannot store. Convert it first, to plain data.',
    ],
  ])('%s', async (_, name, args, message) => {
    const error = await outcomeOf(calls[name] as Call, args)
    expect(error, show(error)).toBeInstanceOf(DibsError)
    expect((error as Error).message).toBe(message)
  })
})
