import type { IncomingMessage, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import compression from 'compression'
import { expect, it, onTestFinished } from 'vitest'
import { deferred } from '../../../test/deferred.js'
import { type Answer, ask } from '../../../test/http/ask.js'
import { listen } from '../../../test/http/listen.js'
import { UnstorableResponseError } from '../idempotency/unstorable-response-error.js'
import { CapturedResponse } from './captured-response.js'

type Handler = (response: ServerResponse, request: IncomingMessage) => void

/** The response that a client gets when the handler's response is captured first and sent afterwards. */
async function through(handler: Handler, maxBytes = 1_000): Promise<Answer> {
  const port = await listen(async (request, response) => {
    const captured = new CapturedResponse(response, () => maxBytes)
    handler(response, request)
    captured.send(await captured.completed)
  })
  return ask(port, '/')
}

/** The response that a client gets without capture. */
async function straight(handler: Handler): Promise<Answer> {
  return ask(await listen((request, response) => handler(response, request)), '/')
}

/** How long it is, is told in one way or another. */
const framing = { 'content-length': undefined, 'transfer-encoding': undefined }

const plain = ({ status, headers: { date: _, ...headers }, body }: Answer) => ({
  status,
  headers,
  body: body.toString(),
})

const handlers: Record<string, Handler> = {
  'end alone': (response) => void response.end(),
  'end with a text': (response) => void response.end('tea'),
  'end with an encoding': (response) => void response.end('dGVh', 'base64'),
  'end with bytes': (response) => void response.end(new Uint8Array([116, 101, 97])),
  'status and headers': (response) => {
    response.statusCode = 202
    response.setHeader('X-One', 'a')
    response.setHeader('X-Many', ['a', 'b'])
    response.end('tea')
  },
  'writeHead with an object': (response) =>
    void response.writeHead(201, { 'x-one': '1', 'content-length': 3 }).end('tea'),
  'writeHead with a message': (response) => void response.writeHead(299, 'Odd', { 'x-one': '1' }).end('tea'),
  'writeHead with names and values in turn': (response) =>
    void response.writeHead(200, ['x-one', '1', 'Set-Cookie', 'a=1', 'set-cookie', 'b=2']).end(),
  'writeHead over a header that was set': (response) => {
    response.setHeader('x-one', '1')
    response.setHeader('x-two', '2')
    response.writeHead(200, { 'X-One': 'other' }).end('tea')
  },
  'cookies added one by one': (response) => {
    response.appendHeader('set-cookie', 'a=1')
    response.appendHeader('set-cookie', 'b=2')
    response.removeHeader('x-none')
    response.end()
  },
  setHeaders: (response) => void response.setHeaders(new Headers({ 'x-one': '1' })).end('tea'),
  'no body': (response) => void response.writeHead(204).end(),
  'not modified': (response) => void response.writeHead(304, { etag: '"1"' }).end(),
}

it.each(Object.entries(handlers))('sends what it would have been: %s', async (_, handler) => {
  const [captured, sent] = [plain(await through(handler)), plain(await straight(handler))]
  expect({ ...captured, headers: { ...captured.headers, ...framing } }).toEqual({
    ...sent,
    headers: { ...sent.headers, ...framing },
  })
})

it('sends in one piece what was written in several', async () => {
  const answer = await through((response) => {
    response.write('t')
    response.write(Buffer.from('e'), () => response.end('a'))
  })
  expect(plain(answer)).toMatchObject({ body: 'tea', headers: { 'content-length': '3' } })
})

it('keeps the message of the status', async () => {
  const port = await listen(async (_request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    response.writeHead(200, 'Fine').end()
    captured.send(await captured.completed)
  })
  const said = await new Promise<string>((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n'))
    socket.once('data', (data) => {
      socket.destroy()
      resolve(String(data))
    })
  })
  expect(said).toMatch(/^HTTP\/1\.1 200 Fine\r\n/)
})

it('sends nothing before it is told to', async () => {
  const goOn = deferred<void>()
  const port = await listen(async (_request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    response.writeHead(200)
    response.write('tea')
    response.end()
    await captured.completed
    await goOn.promise
    captured.send(await captured.completed)
  })
  let bytes = 0
  const socket = connect(port, '127.0.0.1', () => socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n'))
  onTestFinished(() => void socket.destroy())
  socket.on('data', (data) => {
    bytes += data.length
  })
  await new Promise((resolve) => setTimeout(resolve, 50)) // what must not come has no signal
  expect(bytes).toBe(0)
  goOn.resolve()
  await expect.poll(() => bytes).toBeGreaterThan(0)
})

it('looks to the handler as if it were sent', async () => {
  const seen: unknown[] = []
  const answer = await through((response) => {
    seen.push(response.headersSent, response.writableEnded)
    response.write('a')
    seen.push(response.headersSent, response.writableEnded)
    const changes: (() => unknown)[] = [
      () => response.setHeader('x-late', '1'),
      () => response.appendHeader('x-late', '1'),
      () => response.removeHeader('x-late'),
      () => response.writeHead(500),
    ]
    for (const change of changes)
      try {
        change()
        seen.push('changed')
      } catch (error) {
        seen.push((error as { code?: string }).code)
      }
    response.end('b')
    response.statusCode = 500
    seen.push(response.writableEnded)
    response.end('c')
    response.write('d', (error) => seen.push((error as { code?: string } | null)?.code))
  })
  expect(plain(answer)).toMatchObject({ status: 200, body: 'ab' })
  const sent = 'ERR_HTTP_HEADERS_SENT'
  expect(seen).toEqual([
    ...[false, false, true, false],
    ...[sent, sent, sent, sent],
    ...[true, 'ERR_STREAM_WRITE_AFTER_END'],
  ])
})

it('calls back when it was really sent', async () => {
  const calls: string[] = []
  const port = await listen(async (_request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    response.on('finish', () => calls.push('finish'))
    response.end('tea', () => calls.push('ended'))
    const parts = await captured.completed
    await new Promise(setImmediate)
    calls.push('sending')
    captured.send(parts)
  })
  await ask(port, '/')
  await expect.poll(() => calls).toHaveLength(3)
  expect(calls[0]).toBe('sending')
})

it('a handler that destroys its response has none', async () => {
  const ended = deferred<unknown>()
  const port = await listen(async (_request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    response.write('half')
    response.destroy(new Error('no more'))
    ended.resolve(await captured.completed.catch((error) => error))
    await captured.sendOther(new Response('refused', { status: 500 }))
  })
  await expect(ask(port, '/')).rejects.toThrow()
  expect(await ended.promise).toMatchObject({ message: 'The handler destroyed its response.' })
})

it('calls back also if nobody is there any more', async () => {
  const arrived = deferred()
  const called = deferred()
  const port = await listen(async (_request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    arrived.resolve()
    await new Promise((resolve) => response.once('close', resolve))
    response.end('tea', () => called.resolve())
    captured.send(await captured.completed)
  })
  const gone = ask(port, '/', {
    onSent: (request) => void arrived.promise.then(() => request.destroy()),
  })
  await expect(gone).rejects.toThrow()
  await called.promise
})

it('refuses what no response can have, as Node does', async () => {
  const seen: unknown[] = []
  await through((response) => {
    const wrongs: (() => unknown)[] = [() => response.writeHead(1_000_000), () => response.write(7 as never)]
    for (const wrong of wrongs)
      try {
        wrong()
      } catch (error) {
        seen.push((error as Error).message)
      }
    response.end()
  })
  expect(seen).toEqual(['Invalid status code: 1000000', expect.stringContaining('must be of type string')])
})

const streams: [string, Handler][] = [
  ['flushHeaders', (response) => response.flushHeaders()],
  ['trailers', (response) => response.addTrailers({ 'x-end': '1' })],
  [
    'an event stream',
    (response) => void response.setHeader('content-type', 'text/event-stream').write('data: 1'),
  ],
  [
    'chunks that were asked for',
    (response) => void response.writeHead(200, { 'transfer-encoding': 'chunked' }).write('1'),
  ],
]

it.each(streams)('takes for a stream: %s', async (_, stream) => {
  const ended = deferred<unknown>()
  const port = await listen(async (request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    stream(response, request)
    const refused = await captured.completed.catch((error) => error)
    ended.resolve(refused)
    await captured.sendOther(new Response('refused', { status: 500 }))
  })
  expect(plain(await ask(port, '/'))).toMatchObject({ status: 500, body: 'refused' })
  expect(await ended.promise).toBeInstanceOf(UnstorableResponseError)
})

it('has no body if that is too long', async () => {
  const port = await listen(async (_request, response) => {
    response.setHeader('x-before', '1')
    const captured = new CapturedResponse(response, (status) => (status === 200 ? 3 : 0))
    response.setHeader('x-handler', '1')
    response.setHeader('content-type', 'text/plain')
    response.write('te')
    response.end('as')
    const { body } = await captured.completed
    await captured.sendOther(
      new Response(String(body), {
        status: 418,
        headers: [
          ['set-cookie', 'a=1'],
          ['set-cookie', 'b=2'],
        ],
      }),
    )
  })
  const { headers, ...answer } = plain(await ask(port, '/'))
  expect(answer).toEqual({ status: 418, body: 'null' })
  expect(headers).toMatchObject({ 'x-before': '1', 'set-cookie': ['a=1', 'b=2'] })
  expect(headers['x-handler']).toBeUndefined()
})

it('lets one who comes too late write on, to nobody', async () => {
  const made = deferred<unknown>()
  const port = await listen(async (_request, response) => {
    const captured = new CapturedResponse(response, () => 100)
    response.setHeader('x-early', '1')
    await captured.sendOther(new Response('late', { status: 503 }))
    await new Promise((resolve) => response.on('finish', resolve))
    expect(response.headersSent).toBe(false)
    response.statusCode = 201
    response.setHeader('x-late', '2')
    expect([response.getHeader('x-early'), response.hasHeader('x-late')]).toEqual(['1', true])
    response.end('done')
    const { status, headers, body } = await captured.completed
    made.resolve({ status, headers: Object.fromEntries(headers), body: String(body) })
  })
  expect(plain(await ask(port, '/'))).toMatchObject({ status: 503, body: 'late' })
  expect(await made.promise).toEqual({
    status: 201,
    headers: { 'x-early': '1', 'x-late': '2' },
    body: 'done',
  })
})

it.each(['before', 'after'])('works with what compresses, %s it', async (where) => {
  const text = 'tea '.repeat(1_000)
  const bodies: (number | undefined)[] = []
  const port = await listen((request, response) => {
    const pack = compression({ threshold: 0 })
    const capture = async (next: () => void) => {
      const captured = new CapturedResponse(response, () => 100_000)
      next()
      const parts = await captured.completed
      bodies.push(parts.body?.length)
      captured.send(parts)
    }
    const handle = () => void response.setHeader('content-type', 'text/plain').end(text)
    const given = [request, response] as unknown as Parameters<typeof pack>
    if (where === 'before') pack(given[0], given[1], () => void capture(handle))
    else void capture(() => pack(given[0], given[1], handle))
  })
  const answer = await fetch(`http://127.0.0.1:${port}/`)
  expect(answer.headers.get('content-encoding')).toMatch(/gzip|br/)
  expect(await answer.text()).toBe(text)
  expect((bodies[0] ?? 0) < 1_000).toBe(where === 'after') // packed when it was captured
})

it('asks those behind it for their headers, as Node does', async () => {
  const answer = await through((response) => {
    const { writeHead } = response
    // As `on-headers` does, which sessions and cookies are made with.
    response.writeHead = ((...args: Parameters<typeof writeHead>) => {
      response.setHeader('x-behind', 'there')
      return writeHead.apply(response, args)
    }) as typeof writeHead
    response.end('tea')
  })
  expect(plain(answer)).toMatchObject({ body: 'tea', headers: { 'x-behind': 'there' } })
})

it('leaves alone what was piped through something that packs it', async () => {
  const { Readable } = await import('node:stream')
  const { createGzip, gunzipSync } = await import('node:zlib')
  const answer = await through((response) => {
    response.setHeader('content-encoding', 'gzip')
    Readable.from(['tea']).pipe(createGzip()).pipe(response)
  })
  expect(gunzipSync(answer.body).toString()).toBe('tea')
})
