import { expect, it } from 'vitest'
import { url, withPool } from '../../test/database.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { Database } from './database.js'
import { lineOf } from './reserved-line.js'
import { statement } from './statement.js'

const ask = statement('select 1 as one', { readOnly: true })

it('lets go of whoever waits for it to be connected when nobody needs it any more', async () => {
  await using proxy = await PgProxy.start({ url })
  await withPool(
    async (pool) => {
      const line = lineOf(new Database(pool, { schema: 'dibs', prepared: false }))
      const silence = proxy.inject({ kind: 'black-hole' })
      line.enter()
      const asking = line.send(ask, [], 60_000).catch((error) => error)
      const free = line.whenFree()
      const since = performance.now()
      line.leave()
      expect((await asking).message).toBe('it could not be connected')
      await free
      expect(performance.now() - since).toBeLessThan(10_000)
      silence.end()
    },
    { connectionString: proxy.url },
  )
})
