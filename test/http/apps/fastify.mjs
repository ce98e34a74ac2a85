import { Readable } from 'node:stream'
import { claimed, idempotency, rateLimit } from 'dibs/fastify'
import Fastify from 'fastify'
import { announce, api, base, dibs, limited, optionsOf, render, routes, unpackStream } from '../scenario.mjs'

const headerOf = (request, name) => request.headers[name]
const app = Fastify({ routerOptions: { maxParamLength: 1_000 } })
app.addHook('onRequest', async (_request, reply) => {
  reply.header('x-outer', 'there')
})
app.addHook('preParsing', unpackStream)
for (const type of ['multipart/form-data', 'application/octet-stream'])
  app.addContentTypeParser(type, { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
await app.register(idempotency, { dibs, ...base(headerOf) })
for (const route of routes) {
  const { method, path: url } = route
  const config = { idempotency: optionsOf(route, headerOf) }
  app.route({
    method,
    url,
    config,
    async handler(request, reply) {
      const answer = await route.handle({
        claimed: (transaction) => claimed(request, transaction),
        body: request.body,
        params: request.params,
        header: (name) => headerOf(request, name),
      })
      const { body, headers } = render(answer)
      return reply.code(answer.status).headers(headers).send(body)
    },
  })
}
const usual = { config: { idempotency: true } }
app.post('/events', usual, (_request, reply) => {
  reply.raw.writeHead(200, { 'content-type': 'text/event-stream' })
  reply.raw.write('data: 1\n\n')
})
app.post('/piped', usual, (_request, reply) => reply.send(Readable.from(['a', 'b'])))
app.post('/validated', { ...usual, schema: { body: { type: 'object', required: ['item'] } } }, async () => ({
  fine: true,
}))
app.get('/limited', { onRequest: rateLimit(api, limited(headerOf)) }, async () => ({ fine: true }))
await app.listen({ port: 0, host: '127.0.0.1' })
announce(app.server)
