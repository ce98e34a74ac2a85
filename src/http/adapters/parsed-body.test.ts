import { Agent, request } from 'node:http'
import { createRequire } from 'node:module'
import { Readable } from 'node:stream'
import { gzipSync } from 'node:zlib'
import express from 'express'
import Fastify, { type FastifyInstance } from 'fastify'
import multer from 'multer'
import { describe, expect, it, onTestFinished } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { type Answer, ask, type Question } from '../../../test/http/ask.js'
import { listen } from '../../../test/http/listen.js'
import { idempotency } from './express.js'
import { idempotency as fastifyIdempotency } from './fastify.js'

const fixture = openClaims()
const scope = 'anonymous'
const key = { 'idempotency-key': 'k' }

/** Sends one key with a body, with the same body, and with another one. */
async function expectCompared(send: (body: string) => Promise<Answer>, one: string, other: string) {
  expect((await send(one)).status).toBe(201)
  const again = await send(one)
  expect([again.status, again.headers['idempotency-replayed']]).toEqual([201, 'true'])
  expect((await send(other)).status).toBe(422)
}

const expectUnread = ({ status, json }: Answer) =>
  expect([status, json.type]).toEqual([415, 'urn:dibs:problem:body-unread'])

/** Reads the whole body and leaves nothing on the request. */
const consume: express.RequestHandler = (incoming, _response, next) => {
  incoming.on('end', () => next())
  incoming.resume()
}

/** Express 4 has no types here. The routes below use what both have in common. */
const express4: typeof express = createRequire(import.meta.url)('express4')

describe.each([
  ['Express 5', express],
  ['Express 4', express4],
])('%s', (_, framework) => {
  const serve = (...before: express.RequestHandler[]): Promise<number> => {
    const app = framework()
    app.post('/', ...before, idempotency(fixture.dibs, { scope }), (incoming, response) => {
      response.status(201).json({ got: incoming.body ?? null })
    })
    return listen(app)
  }
  const sender = (port: number, type: string, question: Question = {}) => {
    const headers = { ...key, 'content-type': type }
    return (body: string) => ask(port, '/', { headers, body: Buffer.from(body), ...question })
  }

  it.each([
    ['JSON', 'application/json', () => framework.json(), '{"a":1}', '{"a":2}'],
    ['an empty object', 'application/json', () => framework.json(), '{}', '{"a":2}'],
    ['an empty list', 'application/json', () => framework.json(), '[]', '{}'],
    [
      'a form',
      'application/x-www-form-urlencoded',
      () => framework.urlencoded({ extended: false }),
      'a=1',
      'a=2',
    ],
    ['text', 'text/plain', () => framework.text(), 'a', 'b'],
    ['bytes', 'application/octet-stream', () => framework.raw(), 'a', 'b'],
  ])('compares %s, with its length or in chunks', async (_name, type, parser, one, other) => {
    for (const isChunked of [false, true]) {
      await fixture.pool.query(`delete from ${fixture.schema.name}.claim`)
      await expectCompared(sender(await serve(parser()), type, { isChunked }), one, other)
    }
  })

  it('compares what is in a packed body', async () => {
    const port = await serve(framework.json())
    const headers = { ...key, 'content-type': 'application/json', 'content-encoding': 'gzip' }
    await expectCompared((body) => ask(port, '/', { headers, body: gzipSync(body) }), '{"a":1}', '{"a":2}')
  })

  it('compares a body that follows 100 Continue', async () => {
    const port = await serve(framework.json())
    const send = (body: string) =>
      new Promise<Answer>((resolve, reject) => {
        const headers = { ...key, 'content-type': 'application/json', expect: '100-continue' }
        const sent = request({ host: '127.0.0.1', port, method: 'POST', headers }, (response) => {
          response.resume()
          resolve({ status: response.statusCode, headers: response.headers } as Answer)
        })
        sent.on('error', reject)
        sent.on('continue', () => sent.end(body))
        sent.flushHeaders()
      })
    await expectCompared(send, '{"a":1}', '{"a":2}')
  })

  it.each(['text/plain', 'application/x-www-form-urlencoded'])(
    'refuses %s that was consumed and left nowhere',
    async (type) => {
      for (const before of [[consume], [framework.json(), consume]])
        for (const isChunked of [false, true])
          expectUnread(await sender(await serve(...before), type, { isChunked })('a=1'))
    },
  )

  it('takes an empty body for none, however it is sent', async () => {
    const port = await serve(framework.json(), framework.text())
    const chunked = { ...key, 'transfer-encoding': 'chunked' }
    for (const headers of [
      key,
      chunked,
      { ...key, 'content-length': 0 },
      { ...chunked, 'content-type': 'text/plain' },
    ])
      expect((await ask(port, '/', { headers })).status).toBe(201)
  })

  it('serves the next request on the connection after it refused a body in chunks', async () => {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 })
    onTestFinished(() => agent.destroy())
    const port = await serve(framework.json())
    const body = Buffer.alloc(500_000)
    expectUnread(await ask(port, '/', { headers: key, body, isChunked: true, agent }))
    expect((await ask(port, '/', { headers: key, agent })).status).toBe(201)
  })

  it('compares files beside a form', async () => {
    const port = await serve(multer().single('f'))
    const upload = async (content: string) => {
      const body = new FormData()
      body.set('f', new Blob([content]), 'f.txt')
      const { status, headers } = await fetch(`http://127.0.0.1:${port}/`, {
        method: 'POST',
        headers: key,
        body,
      })
      return { status, headers: Object.fromEntries(headers) } as unknown as Answer
    }
    await expectCompared(upload, 'x', 'y')
  })
})

describe('Fastify', () => {
  async function serve(prepare: (app: FastifyInstance) => void = () => {}): Promise<FastifyInstance> {
    const app = Fastify()
    onTestFinished(() => app.close())
    prepare(app)
    await app.register(fastifyIdempotency, { dibs: fixture.dibs, scope })
    app.post('/', { config: { idempotency: true } }, async (_incoming, reply) =>
      reply.code(201).send({ fine: true }),
    )
    return app
  }
  const post = async (app: FastifyInstance, payload: unknown, type = 'application/json') => {
    const headers = { ...key, 'content-type': type }
    const answer = await app.inject({ method: 'POST', url: '/', headers, payload: payload as string })
    return {
      status: answer.statusCode,
      headers: answer.headers,
      json: JSON.parse(answer.body),
    } as unknown as Answer
  }

  it('compares a body that no header announces', async () => {
    const app = await serve()
    await expectCompared((body) => post(app, Readable.from([body])), '{"a":1}', '{"a":2}')
  })

  it('refuses a body that its parser threw away', async () => {
    const app = await serve((made) =>
      made.addContentTypeParser('text/plain', (_incoming, payload, done) => {
        payload.on('end', () => done(null)).resume()
      }),
    )
    expectUnread(await post(app, 'a', 'text/plain'))
  })

  it('compares files that a parser left in memory', async () => {
    const app = await serve((made) => {
      made.addContentTypeParser('multipart/form-data', { parseAs: 'buffer' }, (incoming, body, done) => {
        Object.assign(incoming, { file: { fieldname: 'f', buffer: body } })
        done(null, { a: '1' })
      })
    })
    await expectCompared((body) => post(app, body, 'multipart/form-data; boundary=b'), 'x', 'y')
  })

  it('ignores the functions `file` and `files` of a parser that streams', async () => {
    const app = await serve((made) => {
      made.decorateRequest('file', () => {})
      made.decorateRequest('files', () => {})
    })
    await expectCompared((body) => post(app, body), '{"a":1}', '{"a":2}')
  })
})
