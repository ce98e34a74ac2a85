import { drizzle } from 'drizzle-orm/node-postgres'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { directUrl, dropSchema, freshName, until, wayIn } from '../../test/database.js'
import {
  type JoinedParts,
  ownCalls,
  prepareCall,
  prepareJoinedCalls,
  snapshot,
} from '../../test/joined-calls.js'
import { Dibs } from '../dibs.js'
import { BusinessRuleError, NotAwaitedError, NotInTransactionError } from '../errors.js'
import { claim, fromDrizzle, job, type Tx } from '../index.js'
import type { Lock } from '../locks/lock.js'
import { trackedNames } from './open-calls.js'
import type { Transaction } from './transaction-types.js'

const schema = freshName('open_calls')
const tables = freshName('tables')
const admin = new pg.Pool({ connectionString: directUrl, max: 2 })
let dibs: Dibs
let lock: Lock

beforeAll(async () => {
  dibs = await Dibs.open({ ...wayIn, schema })
  await admin.query(`create schema ${tables}`)
  await prepareJoinedCalls(dibs, admin, tables)
  lock = await dibs.lock('held')
})
afterAll(async () => {
  await lock.release()
  await dibs.close()
  await admin.end()
  await dropSchema(schema)
  await dropSchema(tables)
})

type Work = (tx: Transaction) => Promise<void>

const all = () => snapshot(admin, [schema, tables])

function gated(): { parts: JoinedParts; open: () => void } {
  let open = (): void => {}
  const gate = new Promise<void>((resolve) => {
    open = resolve
  })
  return { parts: { dibs, lock, schema: tables, gate }, open }
}

it('knows every call that is tracked', () => {
  expect(Object.keys(ownCalls).sort()).toEqual([...trackedNames].sort())
})

describe.each(Object.entries(ownCalls))('%s, not awaited', (name, call) => {
  it('makes COMMIT fail, and nothing is kept', async () => {
    const key = freshName('key')
    const { parts, open } = gated()
    const prepared = await prepareCall(dibs, name, key)
    const before = await all()
    const refused = await dibs
      .transaction(async (tx) => {
        await tx.query(`insert into ${tables}.thing (id) values ($1)`, [`beside ${key}`])
        void call({ ...parts, ...prepared }, tx, key)
      })
      .then(
        () => undefined,
        (error) => error,
      )
    open()
    expect(refused).toBeInstanceOf(NotAwaitedError)
    expect(refused.calls[0]).toBe(name)
    expect(refused.message).toContain(name)
    expect(await all()).toBe(before)
  })

  it('makes the release of a savepoint fail, and nothing of that is kept', async () => {
    const key = freshName('key')
    const { parts, open } = gated()
    const prepared = await prepareCall(dibs, name, key)
    await dibs.transaction(async (tx) => {
      const refused = tx.savepoint(async (part) => {
        await part.query(`insert into ${tables}.thing (id) values ($1)`, [`beside ${key}`])
        void call({ ...parts, ...prepared }, part, key)
      })
      await expect(refused).rejects.toMatchObject({ code: 'DIBS_NOT_AWAITED', part: 'savepoint' })
      open()
      await tx.query(`insert into ${tables}.thing (id) values ($1)`, [`after ${key}`])
    })
    const { rows } = await admin.query(`select id from ${tables}.thing where id like $1`, [`%${key}`])
    expect(rows).toEqual([{ id: `after ${key}` }])
  })
})

it('refuses COMMIT while a call runs that was given the client of the transaction', async () => {
  const { parts, open } = gated()
  const key = freshName('key')
  const refused = dibs.transaction(async (tx) => {
    void ownCalls['dibs.once']?.(parts, tx.client as never, key)
  })
  await expect(refused).rejects.toBeInstanceOf(NotAwaitedError)
  open()
  expect(await dibs.claims.get({ scope: 'joined', key })).toBeUndefined()
})

it('refuses the outcome of `once` while a call inside of it runs', async () => {
  const key = freshName('key')
  const run = (isAwaited: boolean) =>
    dibs.once({ scope: 'outer', key }, async (tx) => {
      const inner = dibs.kv.set(key, 1, { tx })
      if (isAwaited) await inner
      return 'done'
    })
  await expect(run(false)).rejects.toMatchObject({ code: 'DIBS_NOT_AWAITED', calls: ['kv.set'] })
  expect(await dibs.claims.get({ scope: 'outer', key })).toBeUndefined()
  expect(await run(true)).toBe('done')
})

it('stores a failure of `once` though a sibling still runs, and keeps nothing of that', async () => {
  const key = freshName('key')
  const run = () =>
    dibs.once({ scope: 'outer', key }, async (tx) => {
      await Promise.all([dibs.kv.set(key, 1, { tx }), Promise.reject(new BusinessRuleError('sold out'))])
    })
  await expect(run()).rejects.toThrow('sold out')
  await expect(run()).rejects.toThrow('sold out')
  expect(await dibs.claims.get({ scope: 'outer', key })).toMatchObject({ status: 'failed' })
  expect(await dibs.kv.get(key)).toBeUndefined()
})

/** Vitest fails a run in which a rejection is not handled. */
describe.each([
  { end: 'fails', run: (fn: Work) => dibs.transaction(fn) },
  {
    end: 'stores a failure',
    run: (fn: Work, key: string) => dibs.once({ scope: 'outer', key }, fn),
  },
  { end: 'undoes a savepoint', run: (fn: Work) => dibs.transaction((tx) => tx.savepoint(fn)) },
])('a transaction that $end', ({ run }) => {
  it('handles the rejection of a call that is still running', async () => {
    const key = freshName('key')
    const { parts, open } = gated()
    let hasEnded = false
    const failed = run(async (tx) => {
      void dibs.once({ scope: 'joined', key, tx }, async (own) => {
        await parts.gate
        await dibs.kv.set(key, 1, { tx: own }).finally(() => {
          hasEnded = true
        })
      })
      throw new BusinessRuleError('sold out')
    }, key)
    await expect(failed).rejects.toThrow('sold out')
    open()
    await until(() => hasEnded, 'the end of the call')
    await new Promise((resolve) => setImmediate(resolve))
    expect(await dibs.kv.get(key)).toBeUndefined()
  })
})

it.each([
  {
    name: 'dibs.once',
    call: (tx: Tx, key: string, fn: () => Promise<void>) => dibs.once({ scope: 'joined', key, tx }, fn),
  },
  {
    name: 'dibs.acquire',
    call: (tx: Tx, key: string, fn: () => Promise<void>) => dibs.acquire([claim.lock(key)], { tx }, fn),
  },
])(
  '$name that a transaction of a pg client has left running does not get into the next one',
  async ({ call }) => {
    const client = await admin.connect()
    try {
      const key = freshName('key')
      const { parts, open } = gated()
      let hasStarted = false
      await client.query('begin')
      const left = call(client, key, async () => {
        hasStarted = true
        await parts.gate
      })
      const outcome = left.catch((error) => error.code)
      await until(() => hasStarted, 'the function of the call')
      await expect(client.query('commit')).rejects.toThrow('await_joined_calls_before_commit')
      await client.query('begin')
      await client.query(`insert into ${tables}.thing (id) values ($1)`, [key])
      open()
      expect(await outcome).toBe('DIBS_NOT_IN_TRANSACTION')
      expect((await client.query('commit')).command).toBe('COMMIT')
    } finally {
      client.release()
    }
  },
)

it('fails and writes nothing, with its name, when a library has sent COMMIT before the first statement', async () => {
  const key = freshName('key')
  let left: Promise<unknown> = Promise.resolve()
  await drizzle({ client: admin }).transaction(async (tx) => {
    await tx.execute('select 1')
    left = dibs.once({ scope: 'joined', key, tx: fromDrizzle(tx) }, async () => 1).catch((error) => error)
  })
  const error = await left
  expect(error).toBeInstanceOf(NotInTransactionError)
  expect(error).toMatchObject({ message: expect.stringContaining(`Await dibs.once of key "${key}"`) })
  expect(await dibs.claims.get({ scope: 'joined', key })).toBeUndefined()
})

it('commits when a call that nobody awaited has ended in time', async () => {
  const key = freshName('key')
  await dibs.transaction(async (tx) => {
    let hasEnded = false
    void dibs.kv.set(key, 1, { tx }).then(() => {
      hasEnded = true
    })
    while (!hasEnded) await tx.query('select 1')
  })
  expect(await dibs.kv.get(key)).toMatchObject({ value: 1 })
})

it('fails the attempt of a transactional handler that leaves a call running, whichever call that is', async () => {
  const jobs = dibs.jobs({
    careless: job<{ name: string; key: string }>({ queue: 'careless', transactional: true, maxAttempts: 1 }),
  })
  const { parts, open } = gated()
  const names = Object.keys(ownCalls).filter((name) => name !== 'dibs.voidSlot' && !name.startsWith('hold.'))
  const before = await all()
  const added = await jobs.addMany(
    names.map((name) => ({ name: 'careless' as const, input: { name, key: freshName('key') } })),
  )
  await using _ = await jobs.work({
    careless: async ({ name, key }, ctx) => {
      void ownCalls[name]?.(parts, ctx.tx, key)
    },
  })
  for (const [n, { id }] of added.entries())
    await expect(jobs.result(id, { waitMs: 30_000 })).rejects.toThrow(`while ${names[n]}`)
  open()
  await jobs.discard({ all: true })
  expect(await all()).toBe(before)
})
