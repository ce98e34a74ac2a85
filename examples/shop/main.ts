import { serve } from '@hono/node-server'
import { Dibs } from 'dibs'
import { createTables } from './schema.js'
import { createShop, startWorker } from './shop.js'

const dibs = await Dibs.open() // DATABASE_URL, or a PostgreSQL of its own in ./.dibs
await dibs.pool.query(createTables)

await startWorker(dibs)
const server = serve(
  { fetch: createShop(dibs).fetch, port: Number(process.env.PORT ?? 3000) },
  ({ port }) => {
    console.log(`listening on http://localhost:${port}`)
  },
)

const stop = () => {
  server.close()
  dibs.close().then(
    () => process.exit(0),
    () => process.exit(1),
  )
}
process.once('SIGTERM', stop).once('SIGINT', stop)
