import express, {
  type Request as ExpressRequest,
  type Response as ExpressResponse,
  type NextFunction,
} from 'express'
import Fastify from 'fastify'
import { Hono } from 'hono'
import { describe, expect, it } from 'vitest'
import { listen } from '../../../test/http/listen.js'
import { toProblem } from '../../errors/to-problem.js'
import { ConflictError } from '../../errors.js'
import { etagOf } from './entity-tag.js'
import { isNotModified } from './precondition.js'
import { withIfMatch } from './with-if-match.js'

/** A version in memory, written as a versioned update does. */
function makeDoc() {
  const doc = { version: 7 }
  const update = async (expected: number): Promise<number> => {
    if (doc.version !== expected) throw new ConflictError({ subject: 'doc', expected, current: doc.version })
    return ++doc.version
  }
  return { doc, update }
}

type Ask = (method: string, headers: Record<string, string>) => Promise<Response>

async function onExpress(): Promise<Ask> {
  const { doc, update } = makeDoc()
  const app = express()
  app.get('/doc', (req, res) => {
    res.set('ETag', etagOf(doc.version))
    if (isNotModified(req, doc.version)) return void res.status(304).end()
    res.json(doc)
  })
  app.put('/doc', async (req, res) => {
    res.set('ETag', etagOf(await withIfMatch(req.headers, update))).json(doc)
  })
  app.use((error: unknown, _: ExpressRequest, res: ExpressResponse, next: NextFunction) => {
    if (res.headersSent) return next(error)
    const { status, headers, body } = toProblem(error)
    res.status(status).set(headers).json(body)
  })
  const port = await listen(app)
  return (method, headers) => fetch(`http://127.0.0.1:${port}/doc`, { method, headers })
}

async function onFastify(): Promise<Ask> {
  const { doc, update } = makeDoc()
  const app = Fastify()
  app.get('/doc', async (request, reply) => {
    reply.header('ETag', etagOf(doc.version))
    return isNotModified(request.headers, doc.version) ? reply.code(304).send() : doc
  })
  app.put('/doc', async (request, reply) => {
    reply.header('ETag', etagOf(await withIfMatch(request.headers, update)))
    return doc
  })
  app.setErrorHandler((error, _, reply) => {
    const { status, headers, body } = toProblem(error)
    return reply.code(status).headers(headers).send(body)
  })
  return async (method, headers) => {
    const answer = await app.inject({ method: method as 'GET', url: '/doc', headers })
    const body = answer.statusCode === 304 ? null : answer.body
    return new Response(body, {
      status: answer.statusCode,
      headers: answer.headers as Record<string, string>,
    })
  }
}

async function onHono(): Promise<Ask> {
  const { doc, update } = makeDoc()
  const app = new Hono()
  app.get('/doc', (c) => {
    c.header('ETag', etagOf(doc.version))
    return isNotModified(c.req.raw.headers, doc.version) ? c.body(null, 304) : c.json(doc)
  })
  app.put('/doc', async (c) => {
    c.header('ETag', etagOf(await withIfMatch(c.req.raw.headers, update)))
    return c.json(doc)
  })
  app.onError((error) => {
    const { status, headers, body } = toProblem(error)
    return new Response(JSON.stringify(body), { status, headers })
  })
  return async (method, headers) => app.request('/doc', { method, headers })
}

describe.each([
  ['Express', onExpress],
  ['Fastify', onFastify],
  ['Hono', onHono],
])('on %s', (_, start) => {
  it('a client reads, changes what it has seen, and is told when it is late', async () => {
    const ask = await start()
    const read = await ask('GET', {})
    expect(read.headers.get('etag')).toBe('"7"')
    expect((await ask('GET', { 'if-none-match': '"7"' })).status).toBe(304)
    const changed = await ask('PUT', { 'if-match': '"7"' })
    expect([changed.status, changed.headers.get('etag')]).toEqual([200, '"8"'])
    expect((await ask('GET', { 'if-none-match': '"7"' })).status).toBe(200)
    const late = await ask('PUT', { 'if-match': '"7"' })
    expect([late.status, late.headers.get('etag')]).toEqual([412, '"8"'])
    expect(late.headers.get('content-type')).toMatch(/^application\/problem\+json/)
    expect(await late.json()).toMatchObject({ type: 'urn:dibs:problem:precondition-failed', status: 412 })
    expect((await ask('PUT', {})).status).toBe(428)
    expect((await ask('PUT', { 'if-match': '7' })).status).toBe(400)
    expect((await ask('PUT', { 'if-match': '"8"' })).status).toBe(200)
  })
})
