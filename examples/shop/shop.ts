import { type Dibs, fromDrizzle, job, toProblem } from 'dibs'
import { claimed, idempotency, type OwnTransaction } from 'dibs/hono'
import { drizzle } from 'drizzle-orm/node-postgres'
import { Hono } from 'hono'
import { HTTPException } from 'hono/http-exception'
import { orders } from './schema.js'

/** The kinds of jobs. Code that adds jobs and code that runs them share this definition. */
export const defineJobs = (dibs: Dibs) =>
  dibs.jobs({ email: job<{ to: string; text: string }, { messageId: string }>({ queue: 'mail' }) })

/** The routes of the shop, ready for `serve` or for `app.request` in a test. */
export function createShop(dibs: Dibs): Hono {
  const db = drizzle(dibs.pool)
  const jobs = defineJobs(dibs)
  const ordersPerDay = dibs.quota('orders-per-day', { limit: 3, per: 'day', timeZone: 'Europe/Berlin' })

  type DrizzleTransaction = Parameters<Parameters<typeof db.transaction>[0]>[0]
  const inDrizzle: OwnTransaction<DrizzleTransaction> = (work) =>
    db.transaction((transaction) => work(fromDrizzle(transaction), transaction))

  const app = new Hono()
  app.onError((error) => {
    if (error instanceof HTTPException) return error.getResponse()
    const { status, headers, body } = toProblem(error)
    if (status === 500) console.error(error)
    return new Response(JSON.stringify(body), { status, headers })
  })

  // Stands for your authentication.
  app.use(async (c, next) => (c.req.header('x-user') ? await next() : c.json({ title: 'Who are you?' }, 401)))
  const userOf = (c: { req: { header(name: string): string | undefined } }) => c.req.header('x-user') ?? ''

  // Quota, stock, order, email job and response commit together. A repeated request gets the same response.
  app.post(
    '/orders',
    idempotency(dibs, { scope: (c) => ['shop', userOf(c)], transaction: inDrizzle }),
    async (c) => {
      const customer = userOf(c)
      const { sku } = await c.req.json<{ sku: unknown }>()
      if (typeof sku !== 'string') return c.json({ title: 'sku must be a string' }, 422)
      const transaction = claimed(c, inDrizzle).tx
      const tx = fromDrizzle(transaction)

      await ordersPerDay.take(customer, 1, { tx }) // QuotaExceededError: 429
      await dibs.rows.adjust('shop_stock', sku, { amount: -1 }, { tx }) // InsufficientError: 409; NotFoundError: 404
      const [order] = await transaction.insert(orders).values({ customer, sku }).returning()
      const email = await jobs.add('email', { to: customer, text: `Your order: one ${sku}` }, { tx })
      return c.json({ ...order, emailJob: email.id }, 201)
    },
  )

  app.get('/emails/:id', async (c) => {
    const found = await jobs.get(c.req.param('id'))
    return found ? c.json({ state: found.state, attempt: found.attempt }) : c.notFound()
  })

  return app
}

/** Runs the email jobs in this process. Every second email fails once, to show a retry. */
export const startWorker = (dibs: Dibs) =>
  defineJobs(dibs).work({
    email: async ({ to, text }, ctx) => {
      if (ctx.attempt === 1 && Number(ctx.id) % 2 === 0) throw new Error('the mail server does not answer')
      console.log(`sent "${text}" to ${to}, attempt ${ctx.attempt}`)
      return { messageId: ctx.id }
    },
  })
