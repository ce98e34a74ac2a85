import { createServer } from 'node:http'
import { Readable } from 'node:stream'
import { claimed, idempotent, rateLimited } from 'dibs/node'
import { announce, api, dibs, limited, optionsOf, render, routes, unpack } from '../scenario.mjs'

const headerOf = (request, name) => request.headers[name]

const serve = (route) =>
  idempotent(dibs, optionsOf(route, headerOf), async (request, response, packed) => {
    const body = unpack(packed, request.headers['content-encoding'])
    const isJson = request.headers['content-type']?.includes('json')
    const answer = await route.handle({
      claimed: (transaction) => claimed(request, transaction),
      body: isJson ? JSON.parse(body.toString()) : body,
      params: { status: decodeURIComponent(request.url.split('/').at(-1)) },
      header: (name) => headerOf(request, name),
    })
    const { body: bytes, headers } = render(answer)
    response.writeHead(answer.status, headers).end(bytes)
  })

const byPath = new Map(
  routes.map((route) => [`${route.method} ${route.path.replace(/:\w+$/, '')}`, serve(route)]),
)
const usual = (handler) => idempotent(dibs, optionsOf({}, headerOf), handler)
byPath.set(
  'POST /events',
  usual((_request, response) => {
    response.writeHead(200, ['content-type', 'text/event-stream'])
    response.write('data: 1\n\n')
  }),
)
byPath.set(
  'POST /piped',
  usual((_request, response) => void Readable.from(['a', 'b']).pipe(response)),
)
byPath.set(
  'GET /limited',
  rateLimited(api, limited(headerOf), (_request, response) => {
    response.setHeader('content-type', 'application/json')
    response.end('{"fine":true}')
  }),
)
const server = createServer((request, response) => {
  response.setHeader('x-outer', 'there')
  const path = request.url.split('?')[0]
  const method = request.method === 'HEAD' ? 'GET' : request.method
  const found = byPath.get(`${method} ${path}`) ?? byPath.get(`${method} ${path.replace(/[^/]+$/, '')}`)
  if (found) found(request, response)
  else response.writeHead(404).end()
})
server.listen(0, '127.0.0.1', () => announce(server))
