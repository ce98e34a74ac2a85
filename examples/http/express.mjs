// An Express application whose orders are placed once, and whose payments are made once, however often a client asks.
//   node examples/http/express.mjs
//   curl -i localhost:3000/orders -H 'Idempotency-Key: "1"' -H 'X-User: ann' -H 'Content-Type: application/json' -d '{"item":"tea"}'
import { Dibs } from 'dibs'
import { claimed, idempotency, rateLimit } from 'dibs/express'
import express from 'express'

const dibs = await Dibs.open()
await dibs.pool.query('create table if not exists orders (id bigserial primary key, item text not null)')

const app = express()
app.use(express.json())

// In place of your authentication.
app.use((req, res, next) => (req.get('x-user') ? next() : res.status(401).json({ title: 'Who are you?' })))

const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
app.use(rateLimit(api, { subject: (req) => req.get('x-user') }))

const scope = (req) => ['shop', req.get('x-user')]

// All in this database: the order and its answer are there together, or neither is.
app.post('/orders', idempotency(dibs, { scope }), async (req, res) => {
  const { tx } = claimed(req)
  const { rows } = await tx.query('insert into orders (item) values ($1) returning id', [req.body.item])
  res.status(201).location(`/orders/${rows[0].id}`).json({ id: rows[0].id, item: req.body.item })
})

// Something outside: the claim is made first, and the bank is told a key that is the same in every attempt.
app.post('/payments', idempotency(dibs, { scope, mode: 'leased' }), async (req, res) => {
  const { claim } = claimed(req)
  const payment = await claim.step('pay', () => pay(req.body.amount, claim.idempotencyKey))
  res.json(payment)
})

app.get('/orders', async (_req, res) => {
  const { rows } = await dibs.pool.query('select id, item from orders order by id')
  res.json(rows)
})

/** A bank that knows a repetition by its key. */
const paid = new Map()
async function pay(amount, key) {
  if (!paid.has(key)) paid.set(key, { payment: paid.size + 1, amount })
  return paid.get(key)
}

const server = app.listen(process.env.PORT ?? 3000, () => {
  console.log(`listening on http://localhost:${server.address().port}`)
})
process.once('SIGTERM', () => server.close(() => dibs.close()))
