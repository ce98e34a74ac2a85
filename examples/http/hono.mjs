// A Hono application whose orders are placed once, and whose payments are made once, however often a client asks.
//   node examples/http/hono.mjs
//   curl -i localhost:3000/orders -H 'Idempotency-Key: "1"' -H 'X-User: ann' -H 'Content-Type: application/json' -d '{"item":"tea"}'
import { serve } from '@hono/node-server'
import { Dibs } from 'dibs'
import { claimed, idempotency, rateLimit } from 'dibs/hono'
import { Hono } from 'hono'

const dibs = await Dibs.open()
await dibs.pool.query('create table if not exists orders (id bigserial primary key, item text not null)')

const app = new Hono()

// In place of your authentication.
app.use(async (c, next) => (c.req.header('x-user') ? await next() : c.json({ title: 'Who are you?' }, 401)))

const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
app.use(rateLimit(api, { subject: (c) => c.req.header('x-user') }))

const scope = (c) => ['shop', c.req.header('x-user')]

// All in this database: the order and its answer are there together, or neither is.
app.post('/orders', idempotency(dibs, { scope }), async (c) => {
  const { tx } = claimed(c)
  const { item } = await c.req.json()
  const { rows } = await tx.query('insert into orders (item) values ($1) returning id', [item])
  return c.json({ id: rows[0].id, item }, 201, { location: `/orders/${rows[0].id}` })
})

// Something outside: the claim is made first, and the bank is told a key that is the same in every attempt.
app.post('/payments', idempotency(dibs, { scope, mode: 'leased' }), async (c) => {
  const { claim } = claimed(c)
  const { amount } = await c.req.json()
  return c.json(await claim.step('pay', () => pay(amount, claim.idempotencyKey)))
})

app.get('/orders', async (c) => {
  const { rows } = await dibs.pool.query('select id, item from orders order by id')
  return c.json(rows)
})

/** A bank that knows a repetition by its key. */
const paid = new Map()
async function pay(amount, key) {
  if (!paid.has(key)) paid.set(key, { payment: paid.size + 1, amount })
  return paid.get(key)
}

const server = serve({ fetch: app.fetch, port: Number(process.env.PORT ?? 3000) }, ({ port }) => {
  console.log(`listening on http://localhost:${port}`)
})
process.once('SIGTERM', () => server.close(() => dibs.close()))
