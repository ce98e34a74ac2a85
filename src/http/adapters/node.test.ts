import { request } from 'node:http'
import { expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { deferred } from '../../../test/deferred.js'
import { ask } from '../../../test/http/ask.js'
import { listen } from '../../../test/http/listen.js'
import { type DibsEvents, onEvent } from '../../postgres/events.js'
import { idempotent, rateLimited } from './node.js'

const fixture = openClaims()

async function failuresOf(fn: () => Promise<unknown>): Promise<DibsEvents['dibs:http.failed'][]> {
  const failures: DibsEvents['dibs:http.failed'][] = []
  const stop = onEvent('dibs:http.failed', (failure) => void failures.push(failure))
  await fn().finally(stop)
  return failures
}

it('a handler that throws after it has answered has its answer sent', async () => {
  const port = await listen(
    idempotent(fixture.dibs, { scope: 'anonymous' }, async (_request, response) => {
      response.writeHead(201).end('done')
      throw new Error('afterwards')
    }),
  )
  const failures = await failuresOf(async () => {
    const answer = await ask(port, '/', { headers: { 'idempotency-key': 'k' } })
    expect([answer.status, String(answer.body)]).toEqual([201, 'done'])
  })
  expect(failures).toMatchObject([{ path: '/', error: { message: 'afterwards' } }])
})

it('a client that is slow to send is not late', async () => {
  const options = { scope: 'anonymous', deadlineMs: 1_500 } as const
  const port = await listen(
    idempotent(fixture.dibs, options, (_request, response) => void response.end('done')),
  )
  const status = await new Promise((resolve, reject) => {
    const headers = { 'idempotency-key': 'k', 'content-type': 'text/plain' }
    const sent = request({ host: '127.0.0.1', port, method: 'POST', headers }, (response) => {
      response.resume()
      resolve(response.statusCode)
    })
    sent.on('error', reject)
    sent.write('a')
    setTimeout(() => sent.end('b'), 2_000) // it is about time
  })
  expect(status).toBe(200)
})

it('the rules of the application have the body', async () => {
  const options = {
    scope: 'anonymous',
    key: ({ body }: { body?: Buffer }) => JSON.parse(String(body)).id,
  } as const
  const port = await listen(
    idempotent(fixture.dibs, options, (_request, response) => void response.end('done')),
  )
  expect((await ask(port, '/', { body: { id: 7 } })).status).toBe(200)
  expect(await fixture.dibs.claims.list({ scope: 'http' })).toMatchObject({ items: [{ key: '7' }] })
})

it('what is answered about an attempt without a recorded outcome is sent, also if it is not stored', async () => {
  const options = { scope: 'anonymous', mode: 'leased' } as const
  const leaseMs = 3_600_000
  const entered = deferred()
  const goOn = deferred()
  const stuck = idempotent(fixture.dibs, { ...options, leaseMs }, async (_request, response) => {
    entered.resolve()
    await goOn.promise
    response.end('too late')
  })
  const onAmbiguous = () => new Response('ask the bank', { status: 503 })
  const asking = idempotent(fixture.dibs, { ...options, onAmbiguous }, () => {})
  const headers = { 'idempotency-key': 'k' }
  const first = ask(await listen(stuck), '/', { headers })
  await entered.promise
  await fixture.schema.clock.advance(leaseMs)
  const answer = await ask(await listen(asking), '/', { headers })
  goOn.resolve()
  await first
  expect([answer.status, String(answer.body)]).toEqual([503, 'ask the bank'])
})

it('a rate limit whose rules, or whose handler, fail does not end the process', async () => {
  const limit = fixture.dibs.rateLimit('api', { algorithm: 'gcra', limit: 10, perMs: 1_000, burst: 10 })
  const subject = ({ headers }: { headers: Record<string, unknown> }) => String(headers['x-user'] ?? '')
  const port = await listen((request, response) => {
    void rateLimited(limit, { subject } as never, () => Promise.reject(new Error('boom')))(request, response)
  })
  const get = (user: string) => ask(port, '/', { method: 'GET', headers: { 'x-user': user } })
  const failures = await failuresOf(async () => {
    expect((await get('')).status).toBe(500)
    expect((await get('u')).status).toBe(500)
    expect((await get('u'.repeat(600))).status).toBe(500) // it is limited, and the handler fails
  })
  expect(failures.map(({ error }) => (error as Error).message)).toEqual([
    '`subject` must not be empty.',
    'boom',
    'boom',
  ])
})

it('refuses a request whose body was read before: every body would look the same', async () => {
  const handle = idempotent(
    fixture.dibs,
    { scope: 'anonymous' },
    (_request, response) => void response.end('done'),
  )
  const port = await listen((request, response) => {
    request.on('end', () => handle(request, response)).resume()
  })
  const send = (body?: Buffer) =>
    ask(port, '/', { headers: { 'idempotency-key': 'k' }, ...(body ? { body } : {}) })
  const failures = await failuresOf(async () => {
    expect((await send(Buffer.from('tea'))).status).toBe(500)
  })
  expect(failures).toMatchObject([
    { error: { message: expect.stringContaining('`body` of the request was read before the middleware') } },
  ])
  expect((await send()).status).toBe(200)
})
