// Plain node:http, whose orders are placed once, and whose payments are made once, however often a client asks.
//   node examples/http/node.mjs
//   curl -i localhost:3000/orders -H 'Idempotency-Key: "1"' -H 'X-User: ann' -H 'Content-Type: application/json' -d '{"item":"tea"}'
import { createServer } from 'node:http'
import { Dibs } from 'dibs'
import { claimed, idempotent, rateLimited } from 'dibs/node'

const dibs = await Dibs.open()
await dibs.pool.query('create table if not exists orders (id bigserial primary key, item text not null)')

const send = (response, status, body, headers = {}) =>
  response.writeHead(status, { 'content-type': 'application/json', ...headers }).end(JSON.stringify(body))

const scope = (request) => ['shop', request.headers['x-user']]

// All in this database: the order and its answer are there together, or neither is.
const placeOrder = idempotent(dibs, { scope }, async (request, response, body) => {
  const { tx } = claimed(request)
  const { item } = JSON.parse(body.toString())
  const { rows } = await tx.query('insert into orders (item) values ($1) returning id', [item])
  send(response, 201, { id: rows[0].id, item }, { location: `/orders/${rows[0].id}` })
})

// Something outside: the claim is made first, and the bank is told a key that is the same in every attempt.
const makePayment = idempotent(dibs, { scope, mode: 'leased' }, async (request, response, body) => {
  const { claim } = claimed(request)
  const { amount } = JSON.parse(body.toString())
  send(response, 200, await claim.step('pay', () => pay(amount, claim.idempotencyKey)))
})

async function listOrders(_request, response) {
  const { rows } = await dibs.pool.query('select id, item from orders order by id')
  send(response, 200, rows)
}

/** A bank that knows a repetition by its key. */
const paid = new Map()
async function pay(amount, key) {
  if (!paid.has(key)) paid.set(key, { payment: paid.size + 1, amount })
  return paid.get(key)
}

const routes = { 'POST /orders': placeOrder, 'POST /payments': makePayment, 'GET /orders': listOrders }
const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
const limited = rateLimited(api, { subject: (request) => request.headers['x-user'] }, (request, response) => {
  const route = routes[`${request.method} ${request.url}`]
  return route ? route(request, response) : send(response, 404, { title: 'Not found' })
})

const server = createServer((request, response) => {
  // In place of your authentication.
  if (!request.headers['x-user']) send(response, 401, { title: 'Who are you?' })
  else limited(request, response).catch(() => send(response, 500, { title: 'Internal Server Error' }))
})
server.listen(process.env.PORT ?? 3000, () => {
  console.log(`listening on http://localhost:${server.address().port}`)
})
process.once('SIGTERM', () => server.close(() => dibs.close()))
