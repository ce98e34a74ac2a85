import { drizzle } from 'drizzle-orm/node-postgres'
import pg, { type PoolClient } from 'pg'
import { describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { directUrl, until } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { realTime } from '../../../test/real-time.js'
import { Dibs } from '../../dibs.js'
import { BusinessRuleError, ConflictError, PermanentError } from '../../errors.js'
import { fromDrizzle } from '../../postgres/adapters/from-drizzle.js'
import { type DibsEvents, onEvent } from '../../postgres/events.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'
import { type FetchHandler, idempotent } from '../adapters/fetch.js'
import { rateLimited } from '../rate-limit/fetch-rate-limit.js'
import type { IdempotencyOptions, OwnTransaction } from './idempotency-options.js'
import { claimed } from './request-claim.js'

const fixture = openClaims()
type Options = Partial<IdempotencyOptions<Request>>

const make = (options: Options, handler: FetchHandler, dibs = fixture.dibs) =>
  idempotent(dibs, { scope: 'anonymous', ...options }, handler)

const makeInside = <H>(
  transaction: OwnTransaction<H>,
  options: Options,
  handler: FetchHandler<[], H>,
  dibs = fixture.dibs,
) => idempotent(dibs, { scope: 'anonymous', ...options, transaction }, handler)

const ask = (headers: Record<string, string> = {}, body: unknown = { item: 'tea' }, method = 'POST') =>
  new Request('http://localhost/orders?x=1', {
    method,
    headers: { 'idempotency-key': 'k', 'content-type': 'application/json', ...headers },
    ...(method === 'GET' ? {} : { body: JSON.stringify(body) }),
  })

const write = (name: string, tx: { query(text: string, values?: unknown[]): Promise<unknown> }) =>
  tx.query(`insert into ${fixture.log} (name) values ($1)`, [name])

/** As a process that stands still in its handler leaves it: its lease has run out. Answers what lets it go on. */
async function abandon(options: Options): Promise<() => Promise<unknown>> {
  const leaseMs = 3_600_000
  const entered = deferred()
  const goOn = deferred()
  const handle = make({ ...options, leaseMs }, async () => {
    entered.resolve()
    await goOn.promise
    return new Response('too late')
  })
  const first = handle(ask())
  await entered.promise
  await fixture.schema.clock.advance(leaseMs)
  return async () => {
    goOn.resolve()
    await first.catch(() => {})
  }
}

/** As libraries run a transaction. */
async function inBegin(work: (tx: PoolClient, handle: PoolClient) => Promise<void>): Promise<void> {
  const client = await fixture.pool.connect()
  try {
    await client.query('begin')
    await work(client, client)
    await client.query('commit')
  } catch {
    await client.query('rollback')
  } finally {
    client.release()
  }
}

async function failuresOf(fn: () => Promise<unknown>): Promise<DibsEvents['dibs:http.failed'][]> {
  const failures: DibsEvents['dibs:http.failed'][] = []
  const stop = onEvent('dibs:http.failed', (failure) => void failures.push(failure))
  await fn().finally(stop)
  return failures
}

describe('a handler on Fetch types', () => {
  it('gets a request with its body, its transaction, and its key', async () => {
    const handle = make({}, async (request, { key, tx }) => {
      expect(claimed(request).tx).toBe(tx)
      await write(((await request.json()) as { item: string }).item, tx)
      return Response.json({ key, url: request.url })
    })
    const first = await handle(ask())
    expect(await first.json()).toEqual({ key: 'k', url: 'http://localhost/orders?x=1' })
    expect((await handle(ask())).headers.get('idempotency-replayed')).toBe('true')
    expect(await fixture.logged()).toEqual(['tea'])
    const { items: claims } = await fixture.dibs.claims.list({ scope: 'http' })
    expect(claims).toMatchObject([{ scope: 'http:POST /orders', key: 'k', status: 'active' }])
  })

  it.each<[string, unknown]>([
    ['undefined', undefined],
    ['a string of 0 characters', ''],
    ['a Promise', Promise.resolve('/')],
    ['a string of 16385 characters', '/'.repeat(16_385)],
  ])('is not run if `normalizePath` returns %s', async (said, path) => {
    let runs = 0
    const handle = make({ normalizePath: () => path as string }, () => new Response(String(++runs)))
    await expect(handle(ask())).rejects.toMatchObject({
      ...{ field: 'normalizePath', status: 500 },
      message: `\`normalizePath\` must return a string of 1 to 16384 characters, not ${said}.`,
    })
    expect(runs).toBe(0)
  })

  it('may answer with a stream of strings, and not with one of other things', async () => {
    const answerWith = (chunk: unknown) =>
      make({}, () => new Response(ReadableStream.from(['t', chunk]) as never))
    for (const _ of [1, 2]) expect(await (await answerWith('é')(ask())).text()).toBe('té')
    const refused = await answerWith(1)(ask({ 'idempotency-key': 'other' }))
    expect([refused.status, await refused.json()]).toMatchObject([500, { operationState: 'not done' }])
    expect((await fixture.dibs.claims.list({ scope: 'http' })).items).toHaveLength(1)
  })

  it('leased, has done its work when its response is no stream that can be stored', async () => {
    let runs = 0
    const handle = make({ mode: 'leased' }, () => {
      runs++
      return new Response(ReadableStream.from([1]) as never)
    })
    for (const _ of [1, 2])
      expect(await (await handle(ask())).json()).toMatchObject({ operationState: 'done', status: 500 })
    expect(runs).toBe(1)
  })

  it('is not reached by a request whose body was read before: every body would look the same', async () => {
    let runs = 0
    const handle = make({}, () => new Response(String(++runs)))
    const read = ask()
    await read.text()
    await expect(handle(read)).rejects.toMatchObject({
      status: 500,
      message: expect.stringContaining('`body` of the request was read before the middleware'),
    })
    expect(runs).toBe(0)
  })

  it('is run again after a conflict, from its start, with its body', async () => {
    let runs = 0
    const handle = make({}, async (request, { tx }) => {
      await write(((await request.json()) as { item: string }).item, tx)
      if (++runs < 3) throw new ConflictError({ subject: 'stock' })
      return new Response('done')
    })
    expect(await (await handle(ask())).text()).toBe('done')
    expect(runs).toBe(3)
    expect(await fixture.logged()).toEqual(['tea'])
  })

  it('answers with an error that is one: stored, without its writes', async () => {
    let runs = 0
    const handle = make({}, async (_, { tx }) => {
      runs++
      await write('a', tx)
      tx.afterCommit(() => void fixture.pool.query(`insert into ${fixture.log} (name) values ('after')`))
      throw new BusinessRuleError('sold out', 'sold-out')
    })
    const answers = [await handle(ask()), await handle(ask())]
    for (const answer of answers) {
      expect(answer.status).toBe(422)
      expect(answer.headers.get('content-type')).toBe('application/problem+json')
      expect(await answer.json()).toEqual({
        type: 'urn:dibs:problem:business-rule',
        title: 'A rule forbids the request',
        status: 422,
        detail: 'sold out',
        code: 'DIBS_BUSINESS_RULE',
        retryable: false,
        rule: 'sold-out',
      })
    }
    expect(runs).toBe(1)
    expect(await fixture.logged()).toEqual([])
  })

  it('does not tell a stranger what has failed for good', async () => {
    const handle = make({ store: 'stripe-v1' }, async () => {
      throw new PermanentError('password of the bank is hunter2')
    })
    const [first, again] = [await handle(ask()), await handle(ask())]
    expect(first.status).toBe(500)
    expect(await first.text()).not.toContain('hunter2')
    expect(again.headers.get('idempotency-replayed')).toBe('true')
  })

  it('throws what it throws, and is free again', async () => {
    const boom = new Error('boom')
    let fails = true
    const handle = make({}, async (_, { tx }) => {
      await write('a', tx)
      if (fails) throw boom
      return new Response('done')
    })
    expect(await failuresOf(() => expect(handle(ask())).rejects.toBe(boom))).toEqual([])
    fails = false
    expect(await (await handle(ask())).text()).toBe('done')
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('has its request as it is where the middleware is not meant', async () => {
    const handle = make({}, async (request, given) => {
      expect(() => given.tx).toThrow("`tx` exists only in mode 'joined'")
      return new Response(request.method)
    })
    expect(await (await handle(ask({}, undefined, 'GET'))).text()).toBe('GET')
    expect(await fixture.dibs.claims.list({ scope: 'http' })).toMatchObject({ items: [] })
  })

  it('has its body also where no key is needed, leased', async () => {
    const handle = make({ mode: 'leased', required: false }, async (request, given) => {
      expect(() => given.claim).toThrow('`claim` exists only for a request with a key')
      return new Response(await request.text())
    })
    const request = ask()
    request.headers.delete('idempotency-key')
    expect(await (await handle(request)).text()).toBe('{"item":"tea"}')
  })
})

describe("the application's own rules", () => {
  it('may read the request, each for itself', async () => {
    const handle = make(
      {
        scope: async (request) => [((await request.json()) as { tenant: string }).tenant],
        key: async (request) => ((await request.json()) as { id: number }).id,
        fingerprint: async (request) => ((await request.json()) as { amount: number }).amount,
      },
      async (request) => new Response(await request.text()),
    )
    const of = (body: object) => handle(ask({}, body))
    const first = await of({ tenant: 'a', id: 1, amount: 5, at: 1 })
    const again = await of({ tenant: 'a', id: 1, amount: 5, at: 2 })
    expect([again.headers.get('idempotency-replayed'), await again.text()]).toEqual([
      'true',
      await first.text(),
    ])
    expect((await of({ tenant: 'a', id: 1, amount: 6 })).status).toBe(422)
    expect((await of({ tenant: 'a', id: 1 })).status).toBe(422) // one that says nothing is another
    expect((await of({ tenant: 'b', id: 1, amount: 6 })).status).toBe(200)
    await expect(of({ tenant: 'a', id: {}, amount: 1 })).rejects.toThrow(
      '`key` must return a string or a number',
    )
  })

  it('are handed what else the handler is called with', async () => {
    const handle = idempotent(
      fixture.dibs,
      { scope: 'anonymous' },
      async (_request, { key }, context: { params: string }) => new Response(`${key} ${context.params}`),
    )
    expect(await (await handle(ask(), { params: 'p' })).text()).toBe('k p')
  })

  it('may store what cannot be replayed: then it is not', async () => {
    const odd = { status: 600, headers: new Headers(), body: null } as unknown as Response
    const handle = make({ store: () => true }, async () => odd)
    await expect(handle(ask())).rejects.toThrow(RangeError) // `Response` itself refuses
    expect(await fixture.dibs.claims.list({ scope: 'http' })).toMatchObject({ items: [] })
  })
})

describe('what is told in place of a handler', () => {
  it.each([
    [undefined, 'not undefined. Refuse'],
    ['', 'not an empty string. Refuse'],
    [[], 'not []. Refuse'],
    [['t', undefined], ', undefined]. Refuse'],
    [['t', {}], 'must be strings or whole numbers'],
    [['x'.repeat(600)], 'must be at most 512 bytes long'],
  ])('a scope of %j is a mistake', async (scope, said) => {
    const handle = make({ scope: () => scope as never }, async () => new Response('done'))
    const error = await handle(ask()).catch((reason) => reason)
    expect(error).toMatchObject({ field: 'scope', status: 500, message: expect.stringContaining(said) })
  })

  it('an event has what a client is not told', async () => {
    const handle = make({}, async (_, { tx }) => {
      await tx.query('select 1 / 0').catch(() => {})
      return new Response('as if')
    })
    const failures = await failuresOf(async () => {
      const answer = await handle(ask())
      expect(answer.status).toBe(500)
      expect(await answer.text()).not.toContain('division')
    })
    expect(failures).toMatchObject([
      { problem: 'failed', method: 'POST', path: '/orders', schema: fixture.schema.name },
    ])
    const [{ error }] = failures as [DibsEvents['dibs:http.failed']]
    expect(String((error as Error).cause)).toContain('division by zero')
  })

  it('a server that cannot be reached: try again, with the same key', async () => {
    await using proxy = await PgProxy.start({ url: directUrl })
    const options = { url: proxy.url, schema: fixture.schema.name, migrate: 'off', listen: false } as const
    await using dibs = await Dibs.open(options)
    const handle = make({}, async () => new Response('done'), dibs)
    await proxy.close()
    const answer = await handle(ask())
    expect(answer.status).toBe(503)
    expect(answer.headers.get('retry-after')).toBe('1')
    expect(await answer.json()).toMatchObject({
      type: 'urn:dibs:problem:unavailable',
      operationState: 'unknown', // an earlier request with the key may have been carried out
      newKeyIsSafe: false,
    })
    const plain = make({ required: false }, async () => new Response('done'), dibs)
    const request = ask()
    request.headers.delete('idempotency-key')
    expect(await (await plain(request)).json()).toMatchObject({ operationState: 'not started' })
  })

  it.each(['joined', 'leased'] as const)('%s, a wait that ends in vain: it is in progress', async (mode) => {
    const entered = deferred()
    const goOn = deferred()
    const handle = make({ mode, waitMs: 100 }, async () => {
      entered.resolve()
      await goOn.promise
      return new Response('done')
    })
    const first = handle(ask())
    await entered.promise
    const second = await handle(ask())
    expect(second.status).toBe(409)
    expect(await second.json()).toMatchObject({
      type: 'urn:dibs:problem:in-progress',
      operationState: 'running',
    })
    goOn.resolve()
    expect((await first).status).toBe(200)
  })

  it('given up after too many attempts', async () => {
    const options: Options = { mode: 'leased', maxAttempts: 1 }
    const goOn = await abandon(options)
    const answer = await make(options, async () => new Response('done'))(ask())
    expect(answer.status).toBe(500)
    expect(answer.headers.get('idempotency-replayed')).toBe('true')
    expect(await answer.json()).toMatchObject({ type: 'urn:dibs:problem:failed', operationState: 'unknown' })
    await goOn()
  })
})

describe('leased', () => {
  it('asks what became of an attempt without a recorded outcome, and stores the answer', async () => {
    const asked: string[] = []
    const options: Options = {
      mode: 'leased',
      onAmbiguous: async (claim, request) => {
        asked.push(`${request.method} ${claim.attempt}`)
        return Response.json({ found: true }, { status: 201, headers: { location: '/p/1' } })
      },
    }
    const goOn = await abandon(options)
    const handle = make(options, async () => new Response('run again'))
    const answer = await handle(ask())
    expect([answer.status, answer.headers.get('location'), await answer.json()]).toEqual([
      201,
      '/p/1',
      { found: true },
    ])
    expect((await handle(ask())).headers.get('idempotency-replayed')).toBe('true')
    expect(asked).toEqual(['POST 2'])
    await goOn()
  })
})

describe('what is made again', () => {
  const large = (changes: Partial<NonNullable<Options['large']>> = {}): Options => ({
    maxResponseBytes: 0,
    large: {
      reference: () => 'ref',
      rebuild: (reference) => new Response(`made of ${reference}`),
      ...changes,
    },
  })

  it('is what the first client gets, too; but not of what is refused', async () => {
    const handle = make(large(), async (request) => {
      const { status } = (await request.json()) as { status: number }
      return new Response('as told', { status })
    })
    for (const _ of [1, 2]) {
      expect(await (await handle(ask({}, { status: 200 }))).text()).toBe('made of ref')
      const refused = await handle(ask({ 'idempotency-key': 'other' }, { status: 400 }))
      expect([refused.status, await refused.text()]).toEqual([400, 'as told'])
    }
    const long = make(large(), async () => new Response('x'.repeat(300_000), { status: 400 }))
    const kept = await long(ask({ 'idempotency-key': 'long' }))
    expect(await kept.json()).toMatchObject({ type: 'urn:dibs:problem:response-not-kept' })
  })

  it.each(['joined', 'leased'] as const)('%s, and that fails: it is done, and said so', async (mode) => {
    let runs = 0
    const rebuild = () => fixture.dibs.transaction((tx) => tx.query('select pg_sleep(9)'), { deadlineMs: 20 })
    const handle = make({ mode, ...large({ rebuild: rebuild as never }) }, async () => {
      runs++
      return new Response('done')
    })
    for (const _ of [1, 2]) {
      const answer = await handle(ask())
      expect([answer.status, await answer.json()]).toMatchObject([
        500,
        { operationState: 'done', newKeyIsSafe: false },
      ])
    }
    expect(runs).toBe(1)
  })

  it('leased, and there is nothing to make it from: the work is done, and not repeated', async () => {
    let runs = 0
    const reference = () => {
      throw new Error('no reference')
    }
    const handle = make({ mode: 'leased', ...large({ reference }) }, async () => {
      runs++
      return new Response('done')
    })
    for (const _ of [1, 2])
      expect(await (await handle(ask())).json()).toMatchObject({
        operationState: 'done',
        newKeyIsSafe: false,
      })
    expect(runs).toBe(1)
  })
})

describe('a handler that never answers', () => {
  it('leased, with the longest deadline there is: it is waited for', async () => {
    const handle = make({ mode: 'leased', deadlineMs: 2 ** 31 - 1 }, async () => {
      await new Promise((resolve) => setTimeout(resolve, 50))
      return new Response('done')
    })
    expect((await handle(ask())).status).toBe(200)
  })

  it('or a question that is never answered: the lease is not kept for ever', realTime, async () => {
    const goOn = deferred()
    const options: Options = { mode: 'leased', leaseMs: 100, deadlineMs: 50 }
    const stuck = make(options, () => goOn.promise.then(() => new Response('too late')))
    expect((await stuck(ask())).status).toBe(504)
    await fixture.beside(async (dibs) => {
      const asking = make(
        { ...options, onAmbiguous: () => new Promise(() => {}) },
        async () => new Response('x'),
        dibs,
      )
      await until(async () => (await asking(ask())).status !== 409, 'the lease to run out')
      const since = performance.now()
      await dibs.close()
      expect(performance.now() - since).toBeLessThan(5_000)
    })
    goOn.resolve()
  })

  it('joined, but what was to follow the commit: the client is told that it is not known', async () => {
    const goOn = deferred()
    const handle = make({ deadlineMs: 1_500 }, async (_, { tx }) => {
      await write('a', tx)
      tx.afterCommit(() => goOn.promise)
      return new Response('done')
    })
    expect(await (await handle(ask())).json()).toMatchObject({
      operationState: 'unknown',
      newKeyIsSafe: false,
    })
    goOn.resolve()
    expect((await handle(ask())).headers.get('idempotency-replayed')).toBe('true')
  })

  it('leased: its lease runs out, and it keeps nobody from closing', async () => {
    await fixture.beside(async (dibs) => {
      const options: Options = { mode: 'leased', leaseMs: 1_000, deadlineMs: 1_000 }
      const handle = make(options, () => new Promise(() => {}), dibs)
      expect((await handle(ask())).status).toBe(504)
      const since = performance.now()
      await dibs.close()
      expect(performance.now() - since).toBeLessThan(15_000)
    })
    const held = async () => (await fixture.dibs.claims.list({ scope: 'http' })).items[0]?.held
    await until(async () => (await held()) === 'abandoned', 'the lease to run out')
  })
})

it.each(['joined', 'leased'] as const)(
  'a closed instance is unavailable, since another process can serve the request: %s',
  async (mode) => {
    await fixture.beside(async (dibs) => {
      const handle = make({ mode }, async () => new Response('done'), dibs)
      await dibs.close()
      const response = await handle(ask())
      expect([response.status, response.headers.get('retry-after')]).toEqual([503, '1'])
      expect(await response.json()).toMatchObject({ type: 'urn:dibs:problem:unavailable' })
    })
  },
)

describe("in the application's own transaction", () => {
  it.each([
    ['the pool has ended', directUrl],
    ['the server is away', 'postgres://127.0.0.1:1/nowhere'],
  ])('is unavailable if that cannot begin: %s', async (what, connectionString) => {
    const pool = new pg.Pool({ connectionString })
    if (what === 'the pool has ended') await pool.end()
    const inDrizzle: OwnTransaction<unknown> = (work) =>
      drizzle({ client: pool }).transaction((tx) => work(fromDrizzle(tx), tx))
    let runs = 0
    const handle = makeInside(inDrizzle, {}, async () => new Response(String(runs++)))
    const response = await handle(ask())
    expect([response.status, response.headers.get('retry-after'), runs]).toEqual([503, '1', 0])
    expect(await response.json()).toMatchObject({
      ...{ type: 'urn:dibs:problem:unavailable', operationState: 'unknown', newKeyIsSafe: false },
    })
  })

  const own: OwnTransaction<PoolClient> = async (work) => {
    const client = await fixture.pool.connect()
    try {
      await client.query('begin')
      await work(client, client)
      await client.query('commit')
    } catch (error) {
      await client.query('rollback')
      throw error
    } finally {
      client.release()
    }
  }

  it('which the handler reads by the function that made it', async () => {
    const other: OwnTransaction<string> = async () => {}
    const handle = makeInside(own, {}, async (request, { key, tx }) => {
      expect(claimed(request, own)).toMatchObject({ key, tx })
      expect(() => claimed(request)).toThrow(
        '`transaction` must be passed, since this route has a `transaction` of its own: claimed(request, transaction).',
      )
      expect(() => claimed(request, other)).toThrow(
        '`transaction` must be the same function as the option `transaction` of this route.',
      )
      return new Response('done')
    })
    expect((await handle(ask())).status).toBe(200)
    for (const mode of ['joined', 'leased'] as const) {
      const ours = make({ mode }, (request) => Response.json(claimed(request, own)))
      await expect(ours(ask({ 'idempotency-key': mode }))).rejects.toThrow('`transaction` must be the same')
    }
  })

  it('also without a key', async () => {
    const handle = makeInside(own, { required: false }, async (_, { tx }) => {
      await write('a', tx)
      return new Response('done', { status: (await fixture.logged()).length > 0 ? 400 : 200 })
    })
    for (const status of [200, 400]) {
      const request = ask()
      request.headers.delete('idempotency-key')
      expect((await handle(request)).status).toBe(status)
    }
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('keeps without a key what it keeps with one', async () => {
    const handle = make({ required: false, keepsWrites: () => true }, async (request, { tx }) => {
      const { status } = (await request.json()) as { status: number }
      await write(String(status), tx)
      return new Response(null, { status })
    })
    for (const status of [402, 403, 500]) {
      const request = ask({}, { status })
      request.headers.delete('idempotency-key')
      expect((await handle(request)).status).toBe(status)
      expect((await handle(ask({ 'idempotency-key': `k${status}` }, { status }))).status).toBe(status)
    }
    expect(await fixture.logged()).toEqual(['402', '402'])
  })

  it.each<[string, (work: (tx: PoolClient, handle: PoolClient) => Promise<void>) => unknown]>([
    ['no promise', (work) => void inBegin(work)],
    ['not awaited', async (work) => void inBegin(work)],
    ['not awaited inside', (work) => inBegin(async (tx, handle) => void work(tx, handle))],
  ])(
    'that does not wait for the work is told so, and does not end the process: %s',
    async (_, transaction) => {
      const handle = makeInside(
        transaction as OwnTransaction<PoolClient>,
        {},
        async () => new Response('done'),
      )
      await expect(handle(ask())).rejects.toThrow('must call the function that it gets, and wait for it')
      await until(() => fixture.pool.idleCount === fixture.pool.totalCount, 'the transaction to end')
    },
  )

  it('which must call what it is given', async () => {
    for (const required of [true, false]) {
      const handle = makeInside(
        async () => {},
        { required },
        async () => new Response(),
      )
      const request = ask()
      if (!required) request.headers.delete('idempotency-key')
      await expect(handle(request)).rejects.toThrow(
        '`transaction` must call the function that it gets, and wait for it',
      )
    }
  })

  it('is rolled back if it ends when the client has its answer', async () => {
    const goOn = deferred()
    const handle = makeInside(own, { deadlineMs: 1_500 }, async (_, { tx }) => {
      await write('a', tx)
      await goOn.promise
      return new Response('late')
    })
    const answer = await handle(ask())
    expect(await answer.json()).toMatchObject({
      type: 'urn:dibs:problem:timed-out',
      operationState: 'unknown',
      newKeyIsSafe: false,
    })
    expect((await handle(ask())).status).toBe(409)
    goOn.resolve()
    await until(() => fixture.pool.idleCount === fixture.pool.totalCount, 'its connection to be back')
    expect(await fixture.logged()).toEqual([])
    expect(await fixture.dibs.claims.list({ scope: 'http' })).toMatchObject({ items: [] })
  })

  it('that comes too late does not let the handler go', async () => {
    const goOn = deferred()
    const ended = deferred<unknown>()
    let runs = 0
    const late: OwnTransaction<PoolClient> = async (work) => {
      await goOn.promise
      await own(work).catch((error) => {
        ended.resolve(error)
        throw error
      })
    }
    const handle = makeInside(late, { deadlineMs: 50 }, async () => {
      runs++
      return new Response('done')
    })
    expect(await (await handle(ask())).json()).toMatchObject({
      operationState: 'unknown',
      newKeyIsSafe: false,
    })
    goOn.resolve()
    expect(String(await ended.promise)).toContain('The claim came after the client got its response')
    expect(runs).toBe(0)
  })

  it('that was not committed, whatever its library says, is not told as done', async () => {
    const careless: OwnTransaction<PoolClient> = (work) =>
      own(async (tx, handle) => {
        await work(tx, handle)
        await tx.query('select 1 / 0').catch(() => {}) // COMMIT is answered with ROLLBACK
      })
    const handle = makeInside(careless, {}, async (_, { tx }) => {
      await write('a', tx)
      return new Response('done', { status: 201 })
    })
    const failures = await failuresOf(async () => {
      const answer = await handle(ask())
      expect([answer.status, await answer.json()]).toMatchObject([500, { operationState: 'unknown' }])
    })
    expect(String(failures[0]?.error)).toContain('has resolved, but nothing was committed')
    expect(await fixture.logged()).toEqual([])
  })

  it('also without a key: what was not committed is not told as done', async () => {
    const handle = makeInside(own, { required: false }, async (_, { tx }) => {
      await write('a', tx)
      await tx.query('select 1 / 0').catch(() => {})
      return new Response('as if', { status: 201 })
    })
    const request = ask()
    request.headers.delete('idempotency-key')
    const answer = await handle(request).catch((error) => error)
    expect(answer).not.toMatchObject({ status: 201 })
    expect(await fixture.logged()).toEqual([])
  })

  it('that was committed when the database went away: it is not known, and no new key is safe', async () => {
    await using proxy = await PgProxy.start({ url: directUrl })
    await fixture.beside(
      async (dibs) => {
        const transaction: OwnTransaction<PoolClient> = async (work) => {
          await own(work)
          await proxy.close()
        }
        const handle = makeInside(
          transaction,
          {},
          async (_, { tx }) => {
            await write('a', tx)
            return new Response('done', { status: 201 })
          },
          dibs,
        )
        const answer = await handle(ask())
        expect([answer.status, await answer.json()]).toMatchObject([
          503,
          { type: 'urn:dibs:problem:outcome-unknown', operationState: 'unknown', newKeyIsSafe: false },
        ])
      },
      { connectionString: proxy.url },
    )
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('whose library wraps errors, or tries again, does not hide the answer', async () => {
    const wrapping: OwnTransaction<PoolClient> = (work) =>
      own(work).catch((error) => {
        throw new Error('transaction failed', { cause: error })
      })
    const stubborn: OwnTransaction<PoolClient> = (work) => own(work).catch(() => own(work))
    for (const transaction of [wrapping, stubborn]) {
      let runs = 0
      const handle = makeInside(transaction, {}, async () => {
        runs++
        return new Response('not now', { status: 500 })
      })
      const answer = await handle(ask())
      expect([answer.status, await answer.text(), runs]).toEqual([500, 'not now', 1])
    }
  })
})

describe('a rate limit', () => {
  it('costs what a request costs, and says when it never fits', async () => {
    const limit = fixture.dibs.rateLimit('costly', { algorithm: 'fixed-window', limit: 5, perMs: 3_600_000 })
    const cost = (request: Request) => Number(request.headers.get('x-cost'))
    const handle = rateLimited(limit, { subject: () => 'a', cost, status: 503 }, () => new Response('done'))
    const of = (n: number) => handle(ask({ 'x-cost': String(n) }))
    expect((await of(4)).headers.get('ratelimit')).toMatch(/^"costly";r=1;/)
    const refused = await of(2)
    expect([refused.status, refused.headers.get('ratelimit')]).toEqual([503, expect.stringMatching(/;r=1;/)])
    const never = await of(6)
    expect([never.status, never.headers.get('retry-after')]).toEqual([422, null]) // no retry helps
    expect(await never.json()).toMatchObject({ type: 'urn:dibs:problem:never-fits', status: 422 })
    expect((await of(1)).status).toBe(200)
  })
})
