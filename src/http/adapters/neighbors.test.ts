import compression from 'compression'
import express from 'express'
import session from 'express-session'
import Fastify, { type FastifyInstance } from 'fastify'
import multer from 'multer'
import { describe, expect, it, onTestFinished } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { listen } from '../../../test/http/listen.js'
import { onEvent } from '../../postgres/events.js'
import { claimed, idempotency } from './express.js'
import { idempotency as fastifyIdempotency } from './fastify.js'

const fixture = openClaims()
const log = (name: string): [string, string[]] => [`insert into ${fixture.log} (name) values ($1)`, [name]]

async function post(port: number, key: string, init: RequestInit = {}): Promise<Response> {
  const headers = { 'idempotency-key': key, ...(init.headers as Record<string, string>) }
  return await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', ...init, headers })
}

describe('Express, beside others', () => {
  const text = 'tea '.repeat(1_000)
  const handler: express.RequestHandler = async (request, response) => {
    await claimed(request).tx.query(...log('done'))
    response.type('text/plain').send(text)
  }

  it.each(['before', 'behind'])('what compresses stands %s it', async (where) => {
    const app = express()
    const guard = idempotency(fixture.dibs, { scope: 'anonymous' })
    const pack = compression({ threshold: 0 })
    app.post('/', ...(where === 'before' ? [pack, guard] : [guard, pack]), handler)
    const port = await listen(app)
    for (const _ of [1, 2]) {
      const answer = await post(port, 'k', { headers: { 'accept-encoding': 'gzip' } })
      expect(answer.headers.get('content-encoding')).toBe('gzip')
      expect(await answer.text()).toBe(text)
    }
    expect(await fixture.logged()).toEqual(['done'])
  })

  it('a session is saved, and its cookie is not replayed', async () => {
    const app = express()
    app.use(session({ secret: 's', resave: false, saveUninitialized: false }))
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), async (request, response) => {
      Object.assign(request.session, { user: 1 })
      response.json({ fine: true })
    })
    const port = await listen(app)
    const first = await post(port, 'k')
    expect(first.headers.get('set-cookie')).toMatch(/^connect\.sid=/)
    const again = await post(port, 'k')
    expect(again.headers.get('set-cookie')).toBeNull()
    expect(await again.text()).toBe(await first.text())
  })

  it('files in memory are compared by their bytes', async () => {
    const app = express()
    app.post('/', multer().any(), idempotency(fixture.dibs, { scope: 'anonymous' }), handler)
    const port = await listen(app)
    const upload = (content: string) => {
      const body = new FormData()
      body.set('a', '1')
      body.set('f', new Blob([content]), 'f.txt')
      return post(port, 'k', { body })
    }
    expect((await upload('x')).status).toBe(200)
    expect((await upload('x')).headers.get('idempotency-replayed')).toBe('true')
    expect((await upload('y')).status).toBe(422)
  })

  it('a body that nobody has read is refused, and the application is told', async () => {
    const app = express()
    app.use(express.json())
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), handler)
    const port = await listen(app)
    const said: string[] = []
    const stop = onEvent('dibs:http.failed', ({ error }) => void said.push((error as Error).message))
    const answer = await post(port, 'k', { body: 'a=1', headers: { 'content-type': 'text/plain' } })
    stop()
    expect([answer.status, await answer.json()]).toMatchObject([
      415,
      { type: 'urn:dibs:problem:body-unread' },
    ])
    expect(said).toEqual([
      '`body` of the request was not read before the middleware, so it cannot tell whether a repetition is the same: put express.json(), or another parser, in front of it, or give `fingerprint`.',
    ])
    expect(await fixture.logged()).toEqual([])
    expect((await post(port, 'k')).status).toBe(200) // without a body there is nothing to read
  })

  it('twice in front of one route is a mistake that is told', async () => {
    const app = express()
    const guard = idempotency(fixture.dibs, { scope: 'anonymous' })
    app.post('/', guard, guard, handler)
    app.use(((error, _request, response, _next) => {
      response.status(error.status).send(error.message)
    }) satisfies express.ErrorRequestHandler)
    const answer = await post(await listen(app), 'k')
    expect([answer.status, await answer.text()]).toEqual([
      500,
      '`middleware` is in front of this route twice. Remove one.',
    ])
  })

  it('a handler is let go once, also if all of it fails at COMMIT', async () => {
    const guard = `${fixture.log}_guard`
    await fixture.pool.query(`
      create function ${guard}() returns trigger language plpgsql as
        $$ begin raise serialization_failure using message = 'too late'; end $$;
      create constraint trigger ${guard} after insert on ${fixture.log} deferrable initially deferred
        for each row when (new.name = 'refused') execute function ${guard}()`)
    onTestFinished(() => void fixture.pool.query(`drop function ${guard} cascade`))
    let runs = 0
    const app = express()
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), async (request, response) => {
      runs++
      await claimed(request).tx.query(...log('refused'))
      response.status(201).json({ fine: true })
    })
    const answer = await post(await listen(app), 'k')
    expect(answer.status).toBe(503)
    expect(await answer.json()).toMatchObject({ operationState: 'not done', newKeyIsSafe: true })
    expect(runs).toBe(1)
    expect(await fixture.logged()).toEqual([])
  })

  it.each([
    ['is carried out twice without `normalizePath`', undefined, 2],
    ['is carried out once with it', (path: string) => path.toLowerCase().replace(/\/$/, ''), 1],
  ])('one key under two spellings of a path that reach one route %s', async (_, normalizePath, runs) => {
    const app = express()
    app.post('/x/orders', idempotency(fixture.dibs, { scope: 'anonymous', normalizePath }), handler)
    const port = await listen(app)
    for (const path of ['/x/orders', '/X/Orders/']) {
      const headers = { 'idempotency-key': 'k' }
      const answer = await fetch(`http://127.0.0.1:${port}${path}`, { method: 'POST', headers })
      expect(answer.status).toBe(200)
    }
    expect(await fixture.logged()).toHaveLength(runs)
  })

  it('a handler outside of it is told so', async () => {
    const app = express()
    app.post('/', (request) => void claimed(request))
    app.use(((error, _request, response, _next) => {
      response.status(error.status).send(error.message)
    }) satisfies express.ErrorRequestHandler)
    const answer = await post(await listen(app), 'k')
    expect([answer.status, await answer.text()]).toEqual([
      500,
      expect.stringContaining('has not passed the idempotency middleware'),
    ])
  })
})

describe('Fastify, beside others', () => {
  async function serve(prepare: (app: FastifyInstance) => unknown): Promise<number> {
    const app = Fastify()
    onTestFinished(() => app.close())
    await prepare(app)
    await app.listen({ port: 0, host: '127.0.0.1' })
    return (app.server.address() as { port: number }).port
  }
  const plugin = { scope: 'anonymous' } as const

  it('what changes every answer changes it once', async () => {
    const port = await serve(async (app) => {
      app.addHook('onSend', async (_request, reply, payload) => {
        reply.header('x-sent', '1')
        return `<${payload}>`
      })
      await app.register(fastifyIdempotency, { dibs: fixture.dibs, ...plugin })
      app.post('/', { config: { idempotency: true } }, async () => 'tea')
    })
    for (const isReplay of [false, true]) {
      const answer = await post(port, 'k')
      expect(answer.headers.has('idempotency-replayed')).toBe(isReplay)
      expect([answer.headers.get('x-sent'), await answer.text()]).toEqual(['1', '<tea>'])
    }
  })

  it('a route that was made before the plugin is a mistake that is told', async () => {
    const port = await serve((app) => {
      void app.register(fastifyIdempotency, { dibs: fixture.dibs, ...plugin })
      app.post('/', { config: { idempotency: true } }, async () => 'tea')
      app.post('/other', async () => 'tea')
    })
    const answer = await post(port, 'k')
    expect([answer.status, await answer.json()]).toMatchObject([
      500,
      {
        message: expect.stringContaining(
          'belongs to a route that was defined before the plugin. Await `app.register` first',
        ),
      },
    ])
    expect((await fetch(`http://127.0.0.1:${port}/other`, { method: 'POST' })).status).toBe(200)
  })

  it('what compresses is before or behind it, and a stream is one all the same', async () => {
    const { default: pack } = await import('@fastify/compress')
    const app = Fastify()
    onTestFinished(() => app.close())
    await app.register(pack, { threshold: 0 })
    await app.register(fastifyIdempotency, { dibs: fixture.dibs, scope: 'anonymous' })
    app.post('/', { config: { idempotency: true } }, async (request) => {
      await claimed(request).tx.query(...log('done'))
      return { text: 'tea '.repeat(1_000) }
    })
    await app.listen({ port: 0, host: '127.0.0.1' })
    const { port } = app.server.address() as { port: number }
    const bodies: string[] = []
    for (const _ of [1, 2]) {
      const answer = await post(port, 'k', { headers: { 'accept-encoding': 'gzip' } })
      expect(answer.headers.get('content-encoding')).toBe('gzip')
      bodies.push(await answer.text())
    }
    expect(bodies[0]).toContain('tea tea')
    expect(bodies[1]).toBe(bodies[0])
    expect(await fixture.logged()).toEqual(['done'])
  })
})
