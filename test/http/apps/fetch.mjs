import { serve } from '@hono/node-server'
import { claimed, idempotent, rateLimited } from 'dibs/http'
import { announce, api, dibs, limited, optionsOf, render, routes, unpack } from '../scenario.mjs'

const headerOf = (request, name) => request.headers.get(name) ?? undefined

const handlerOf = (route) =>
  idempotent(dibs, optionsOf(route, headerOf), async (request) => {
    const isJson = request.headers.get('content-type')?.includes('json')
    const bytes = unpack(Buffer.from(await request.arrayBuffer()), headerOf(request, 'content-encoding'))
    const answer = await route.handle({
      claimed: (transaction) => claimed(request, transaction),
      body: isJson ? JSON.parse(bytes.toString()) : bytes,
      params: { status: decodeURIComponent(request.url.split('/').at(-1)) },
      header: (name) => headerOf(request, name),
    })
    const { body, headers } = render(answer)
    return new Response(body, { status: answer.status, headers })
  })

const byPath = new Map(
  routes.map((route) => [`${route.method} ${route.path.replace(/:\w+$/, '')}`, handlerOf(route)]),
)
byPath.set(
  'POST /events',
  idempotent(dibs, optionsOf({}, headerOf), () => {
    const body = new ReadableStream({ start: (controller) => controller.enqueue(Buffer.from('data: 1\n\n')) })
    return new Response(body, { headers: { 'content-type': 'text/event-stream' } })
  }),
)
byPath.set(
  'GET /limited',
  rateLimited(api, limited(headerOf), () => Response.json({ fine: true })),
)
async function fetch(request) {
  const path = new URL(request.url).pathname
  const method = request.method === 'HEAD' ? 'GET' : request.method
  const found = byPath.get(`${method} ${path}`) ?? byPath.get(`${method} ${path.replace(/[^/]+$/, '')}`)
  if (!found) return new Response(null, { status: 404 })
  try {
    const response = await found(request)
    response.headers.set('x-outer', 'there')
    return response
  } catch (error) {
    return Response.json({ error: error.message }, { status: 500, headers: { 'x-outer': 'there' } })
  }
}
const server = serve({ fetch, port: 0, hostname: '127.0.0.1' }, () => announce(server))
