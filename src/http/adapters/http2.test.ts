import 'reflect-metadata'
import { createServer } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { serve as serveHono } from '@hono/node-server'
import { Body, Controller, Module, Post } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import Fastify from 'fastify'
import { Hono } from 'hono'
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { http2Client } from '../../../test/http/ask-http2.js'
import { idempotency as fastifyIdempotency } from './fastify.js'
import { idempotency as honoIdempotency } from './hono.js'
import { IdempotencyModule, Idempotent } from './nest.js'
import { idempotent } from './node.js'

const fixture = openClaims()
const scope = 'anonymous'
/** The bodies that handlers got in this test. */
const handled: unknown[] = []
const answerTo = (body: unknown): object => {
  handled.push(body ?? null)
  return { got: body ?? null }
}
beforeEach(() => void handled.splice(0))

/** Starts a server whose POST / answers 201 with the body that it read. Resolves to its port. */
const servers: Record<string, () => Promise<number>> = {
  async Fastify() {
    const app = Fastify({ http2: true })
    onTestFinished(() => app.close())
    await app.register(fastifyIdempotency, { dibs: fixture.dibs, scope })
    app.post('/', { config: { idempotency: true } }, async (request, reply) =>
      reply.code(201).send(answerTo(request.body)),
    )
    await app.listen({ port: 0, host: '127.0.0.1' })
    return (app.server.address() as AddressInfo).port
  },
  async 'Nest over Fastify'() {
    class Orders {
      create(body: unknown) {
        return answerTo(body)
      }
    }
    Body()(Orders.prototype, 'create', 0)
    for (const decorate of [Idempotent(), Post()]) {
      const descriptor = Object.getOwnPropertyDescriptor(Orders.prototype, 'create') as PropertyDescriptor
      Object.defineProperty(
        Orders.prototype,
        'create',
        decorate(Orders.prototype, 'create', descriptor) ?? descriptor,
      )
    }
    Controller()(Orders)
    class App {}
    Module({
      imports: [IdempotencyModule.forRoot({ dibs: fixture.dibs, scope })],
      controllers: [Orders],
    })(App)
    const app = await NestFactory.create(App, new FastifyAdapter({ http2: true }), { logger: false })
    onTestFinished(() => app.close())
    await app.listen(0, '127.0.0.1')
    return (app.getHttpServer().address() as AddressInfo).port
  },
  async 'node:http2'() {
    const handler = idempotent(fixture.dibs, { scope }, (_request, response, body) => {
      response.writeHead(201, { 'content-type': 'application/json' })
      response.end(JSON.stringify(answerTo(body.length === 0 ? null : JSON.parse(String(body)))))
    })
    const server = createServer(handler as never)
    onTestFinished(() => void server.close())
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return (server.address() as AddressInfo).port
  },
  async Hono() {
    const app = new Hono()
    app.post('/', honoIdempotency(fixture.dibs, { scope }), async (c) => {
      const text = await c.req.text()
      return c.json(answerTo(text === '' ? null : JSON.parse(text)), 201)
    })
    return await new Promise((resolve) => {
      const options = { fetch: app.fetch, createServer, port: 0, hostname: '127.0.0.1' }
      const server = serveHono(options, ({ port }) => resolve(port))
      onTestFinished(() => void server.close())
    })
  },
}

describe.each(Object.keys(servers))('%s over HTTP/2, without content-length', (name) => {
  const json = { 'content-type': 'application/json' }
  const start = async () => {
    const send = http2Client(await (servers[name] as () => Promise<number>)())
    return (
      key: string,
      body: string | undefined,
      headers: Record<string, string> = json,
      options: { isReset?: boolean } = {},
    ) => send('/', { 'idempotency-key': key, ...headers }, body, options)
  }
  const tea = JSON.stringify({ item: 'tea' })

  it('replays the same body and refuses another one', async () => {
    const send = await start()
    const first = await send('k', tea)
    expect([first.status, JSON.parse(first.body)]).toEqual([201, { got: { item: 'tea' } }])
    const again = await send('k', '{ "item": "tea" }')
    expect([again.status, again.headers['idempotency-replayed'], again.body]).toEqual([
      201,
      'true',
      first.body,
    ])
    const other = await send('k', JSON.stringify({ item: 'coffee' }))
    expect([other.status, JSON.parse(other.body)]).toMatchObject([
      422,
      { type: 'urn:dibs:problem:key-reused' },
    ])
  })

  it('tells a body from none, in both orders', async () => {
    const send = await start()
    expect((await send('bodiless-first', undefined, {})).status).toBe(201)
    expect((await send('bodiless-first', tea)).status).toBe(422)
    expect((await send('body-first', tea)).status).toBe(201)
    expect((await send('body-first', undefined, {})).status).toBe(422)
  })

  it('takes an empty DATA frame for no body', async () => {
    const send = await start()
    const first = await send('k', undefined, {})
    expect([first.status, JSON.parse(first.body)]).toEqual([201, { got: null }])
    const again = await send('k', '', {})
    expect([again.status, again.headers['idempotency-replayed']]).toEqual([201, 'true'])
  })

  it('does not carry out half of a body that the client resets', async () => {
    const send = await start()
    const cut = await send('k', '1', json, { isReset: true }).catch((error: Error) => error)
    expect(cut).toBeInstanceOf(Error)
    const answer = await send('k', '12')
    expect([answer.status, JSON.parse(answer.body)]).toEqual([201, { got: 12 }])
    expect(handled).toEqual([12])
  })
})

describe('over HTTP/2', () => {
  it('Node does not warn about status messages', async () => {
    const warnings: Error[] = []
    const note = (warning: Error) => void warnings.push(warning)
    process.on('warning', note)
    onTestFinished(() => void process.off('warning', note))
    const send = http2Client(await (servers['node:http2'] as () => Promise<number>)())
    for (const _ of [1, 2]) await send('/', { 'idempotency-key': 'k' }, 'null')
    expect(warnings).toEqual([])
  })

  it('a body that Fastify does not parse, for want of a content type, is refused', async () => {
    const send = http2Client(await (servers.Fastify as () => Promise<number>)())
    for (const body of ['tea', 'x'.repeat(500_000)]) {
      const answer = await send('/', { 'idempotency-key': 'k' }, body)
      expect([answer.status, JSON.parse(answer.body).type]).toEqual([415, 'urn:dibs:problem:body-unread'])
    }
    expect(handled).toEqual([])
  })

  it('a response with trailers is refused', async () => {
    const handler = idempotent(fixture.dibs, { scope }, (_request, response) => {
      ;(response as unknown as { setTrailer(name: string, value: string): void }).setTrailer('x-sum', '1')
      response.end('done')
    })
    const server = createServer(handler as never)
    onTestFinished(() => void server.close())
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const send = http2Client((server.address() as AddressInfo).port)
    expect((await send('/', { 'idempotency-key': 'k' }, '')).status).toBe(500)
  })
})
