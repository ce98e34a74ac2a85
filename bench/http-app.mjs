// The application that bench/http.mjs asks: the same routes with and without the middleware, in a process of its own.
import { createServer } from 'node:http'
import express from 'express'
import { claimed, idempotency } from '../dist/express.js'
import { Dibs } from '../dist/index.js'
import { claimed as claimedByNode, idempotent } from '../dist/node.js'

const dibs = await Dibs.open({ listen: false })
dibs.pool.on('error', () => {})

const increment = (executor) =>
  executor.query('update http_counter set n = n + 1 where id = $1', [1 + Math.floor(Math.random() * 1000)])
const scope = (request) => ['tenant', request.headers['x-user']]

const app = express()
app.use(express.json())
app.post('/plain', async (_request, response) => {
  await dibs.transaction(increment)
  response.json({ ok: true })
})
app.post('/joined', idempotency(dibs, { scope }), async (request, response) => {
  await increment(claimed(request).tx)
  response.json({ ok: true })
})
app.post('/outside', (_request, response) => response.json({ ok: true }))
app.post('/leased', idempotency(dibs, { scope, mode: 'leased' }), (_request, response) =>
  response.json({ ok: true }),
)

const send = (response) => response.writeHead(200, { 'content-type': 'application/json' }).end('{"ok":true}')
const bare = async (request, response) => {
  for await (const _ of request); // read it, as the other does
  await dibs.transaction(increment)
  send(response)
}
const joined = idempotent(dibs, { scope }, async (request, response) => {
  await increment(claimedByNode(request).tx)
  send(response)
})
const node = createServer((request, response) =>
  (request.url === '/plain' ? bare : joined)(request, response),
)

const port = (server) =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port)))
process.send({ express: await port(createServer(app)), node: await port(node) })
process.on('disconnect', () => process.exit())
