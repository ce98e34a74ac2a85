import { drizzle } from 'drizzle-orm/node-postgres'
import { expect, it } from 'vitest'
import { directUrl, dropSchema, freshName } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'

// `pg` ends the process if a client that is checked out loses its connection and nobody listens to its errors.
it('a connection that is lost inside a transaction of a library does not end the process', async () => {
  const schema = freshName()
  await using proxy = await PgProxy.start({ url: directUrl })
  await using dibs = await Dibs.open({ url: proxy.url, schema, listen: false, maintain: false })
  const cut = proxy.inject({ kind: 'cut', when: 'before', statement: '/in the middle/' })
  const failed = drizzle({ client: dibs.pool }).transaction(async (tx) => {
    await tx.execute('select 1')
    await tx.execute("select 'in the middle'")
  })
  await expect(failed).rejects.toThrow()
  expect(cut.strikes).toBe(1)
  expect((await dibs.pool.query('select 1 as n')).rows).toEqual([{ n: 1 }])
  await dropSchema(schema)
})
