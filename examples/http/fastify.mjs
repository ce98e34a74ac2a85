// A Fastify application whose orders are placed once, and whose payments are made once, however often a client asks.
//   node examples/http/fastify.mjs
//   curl -i localhost:3000/orders -H 'Idempotency-Key: "1"' -H 'X-User: ann' -H 'Content-Type: application/json' -d '{"item":"tea"}'
import { Dibs } from 'dibs'
import { claimed, idempotency, rateLimit } from 'dibs/fastify'
import Fastify from 'fastify'

const dibs = await Dibs.open()
await dibs.pool.query('create table if not exists orders (id bigserial primary key, item text not null)')

const app = Fastify()

// In place of your authentication.
app.addHook('onRequest', async (request, reply) => {
  if (!request.headers['x-user']) return reply.code(401).send({ title: 'Who are you?' })
})

const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
app.addHook('onRequest', rateLimit(api, { subject: (request) => request.headers['x-user'] }))

await app.register(idempotency, { dibs, scope: (request) => ['shop', request.headers['x-user']] })

// All in this database: the order and its answer are there together, or neither is.
const body = { type: 'object', required: ['item'], properties: { item: { type: 'string' } } }
app.post('/orders', { schema: { body }, config: { idempotency: true } }, async (request, reply) => {
  const { tx } = claimed(request)
  const { item } = request.body
  const { rows } = await tx.query('insert into orders (item) values ($1) returning id', [item])
  return reply.code(201).header('location', `/orders/${rows[0].id}`).send({ id: rows[0].id, item })
})

// Something outside: the claim is made first, and the bank is told a key that is the same in every attempt.
app.post('/payments', { config: { idempotency: { mode: 'leased' } } }, async (request) => {
  const { claim } = claimed(request)
  return await claim.step('pay', () => pay(request.body.amount, claim.idempotencyKey))
})

app.get('/orders', async () => {
  const { rows } = await dibs.pool.query('select id, item from orders order by id')
  return rows
})

/** A bank that knows a repetition by its key. */
const paid = new Map()
async function pay(amount, key) {
  if (!paid.has(key)) paid.set(key, { payment: paid.size + 1, amount })
  return paid.get(key)
}

await app.listen({ port: Number(process.env.PORT ?? 3000) })
console.log(`listening on http://localhost:${app.server.address().port}`)
process.once('SIGTERM', async () => {
  await app.close()
  await dibs.close()
})
