import { expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url, viaPgBouncer, withPool } from '../../test/database.js'
import { renewLocks } from '../locks/lock-statements.js'
import { Database } from '../postgres/database.js'
import { renewalConnectionOf } from '../postgres/dedicated-connection.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { sendRenewal } from './send-renewal.js'

const fixture = openClaims()
const HOUR_MS = 3_600_000

it('a renewal whose connection breaks goes over the pool', async () => {
  await using proxy = await PgProxy.start({ url })
  await withPool(
    async (pool) => {
      const database = new Database(pool, { schema: fixture.schema.name, prepared: !viaPgBouncer })
      const connection = renewalConnectionOf(database)
      connection.retain()
      const renew = () => sendRenewal(database, renewLocks, ['[]'], HOUR_MS)
      const isReady = () => connection.isConnected && !connection.isBusy && pool.idleCount === pool.totalCount
      await until(async () => (await renew()).length === 1 && isReady(), 'the connection to be made')
      const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'lock_renew' })
      expect(await renew()).toHaveLength(1)
      expect(cut.strikes).toBe(1)
      connection.release()
    },
    { connectionString: proxy.url },
  )
})

it('a renewal does not wait behind another for a connection that is silent', async () => {
  await using proxy = await PgProxy.start({ url })
  await withPool(
    async (pool) => {
      const database = new Database(pool, { schema: fixture.schema.name, prepared: !viaPgBouncer })
      const connection = renewalConnectionOf(database)
      const renew = async (): Promise<'answered' | 'unanswered'> =>
        sendRenewal(database, renewLocks, ['[]'], HOUR_MS).then(
          () => 'answered',
          () => 'unanswered',
        )
      connection.retain()
      // The renewal that made the connection may also be on its way over the pool.
      const isReady = () => connection.isConnected && !connection.isBusy && pool.idleCount === pool.totalCount
      await until(async () => (await renew()) === 'answered' && isReady(), 'the connection to be made')
      const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'lock_renew', how: 'black-hole' })
      const ended: string[] = []
      const silent = renew().then((result) => ended.push(`the first: ${result}`))
      await cut.happened
      await renew().then((result) => ended.push(`the second: ${result}`))
      connection.release()
      await silent
      // The pool takes over from a connection that is given up.
      expect(ended).toEqual(['the second: answered', 'the first: answered'])
      cut.end()
    },
    { connectionString: proxy.url },
  )
})
