import { serve } from '@hono/node-server'
import { claimed, idempotency, rateLimit } from 'dibs/hono'
import { Hono } from 'hono'
import { streamSSE } from 'hono/streaming'
import { announce, api, dibs, limited, optionsOf, render, routes, unpack } from '../scenario.mjs'

const headerOf = (c, name) => c.req.header(name)
const app = new Hono()
app.use(async (c, next) => {
  c.header('x-outer', 'there')
  await next()
})
const bodyOf = async (c) => {
  const bytes = unpack(Buffer.from(await c.req.arrayBuffer()), c.req.header('content-encoding'))
  return c.req.header('content-type')?.includes('json') ? JSON.parse(bytes.toString()) : bytes
}
for (const route of routes) {
  app.on(route.method, route.path, idempotency(dibs, optionsOf(route, headerOf)), async (c) => {
    const answer = await route.handle({
      claimed: (transaction) => claimed(c, transaction),
      body: await bodyOf(c),
      params: c.req.param(),
      header: (name) => headerOf(c, name),
    })
    const { body, headers } = render(answer)
    return c.body(body ?? null, answer.status, headers)
  })
}
const usual = idempotency(dibs, optionsOf({}, headerOf))
app.post('/events', usual, (c) => streamSSE(c, (stream) => stream.writeSSE({ data: '1' })))
app.post(
  '/validated',
  async (c, next) => ((await c.req.json()).item ? await next() : c.json({ bad: true }, 400)),
  usual,
  (c) => c.json({ fine: true }),
)
app.get('/limited', rateLimit(api, limited(headerOf)), (c) => c.json({ fine: true }))
app.onError((error, c) => c.json({ error: error.message }, 500))
const server = serve({ fetch: app.fetch, port: 0, hostname: '127.0.0.1' }, () => announce(server))
