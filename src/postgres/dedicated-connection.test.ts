import { expect, it } from 'vitest'
import { url, withPool } from '../../test/database.js'
import { CommitOutcomeUnknownError } from '../errors.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { Database } from './database.js'
import { renewalConnectionOf } from './dedicated-connection.js'
import { statement } from './statement.js'

const ask = statement('select 1 as one', { readOnly: true })
const late = statement(`select 'late'::text as result from pg_catalog.pg_sleep(20)`)

it('does not know what became of a statement that the settings of the pool have given up', async () => {
  await withPool(
    async (pool) => {
      const connection = renewalConnectionOf(new Database(pool, { schema: 'dibs', prepared: false }))
      await expect(connection.send(late, [])).rejects.toThrow(CommitOutcomeUnknownError)
    },
    { query_timeout: 500 },
  )
})

it('lets go of whoever waits for it to be connected when nobody needs it any more', async () => {
  await using proxy = await PgProxy.start({ url })
  await withPool(
    async (pool) => {
      const line = renewalConnectionOf(new Database(pool, { schema: 'dibs', prepared: false }))
      const silence = proxy.inject({ kind: 'black-hole' })
      line.retain()
      const asking = line.send(ask, [], { deadlineMs: 60_000, connectMs: 60_000 }).catch((error) => error)
      const free = line.whenFree()
      const since = performance.now()
      line.release()
      expect((await asking).message).toBe(
        'A dedicated connection could not be made: the connection was given up.',
      )
      await free
      expect(performance.now() - since).toBeLessThan(10_000)
      silence.end()
    },
    { connectionString: proxy.url },
  )
})
