import type pg from 'pg'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { JoinedCall } from './joined-call.js'

let database: TestDatabase

beforeAll(async () => {
  database = await openDatabase()
})

afterAll(() => database.drop())

async function withClients(fn: (...clients: [pg.PoolClient, pg.PoolClient]) => Promise<void>): Promise<void> {
  const clients: [pg.PoolClient, pg.PoolClient] = [
    await database.pool.connect(),
    await database.pool.connect(),
  ]
  try {
    await fn(...clients)
  } finally {
    for (const client of clients) {
      await client.query('rollback')
      client.release()
    }
  }
}

it.each(['new', 'vacuumed'])(
  'serializable transactions with calls do not conflict on a table that is %s',
  (state) =>
    withClients(async (...clients) => {
      const table = `${database.schema}.joined_call`
      if (state === 'vacuumed') await database.pool.query(`vacuum analyze ${table}`)
      const mark = async (client: pg.PoolClient) => {
        const call = new JoinedCall(database, client, 'a call')
        await call.open()
        await call.close()
      }
      for (const client of clients) await client.query('begin isolation level serializable')
      for (const _ of [1, 2]) for (const client of clients) await mark(client)
      for (const client of clients) expect((await client.query('commit')).command).toBe('COMMIT')
    }),
)

it('does not take the mark of another call for its own that a savepoint has undone', () =>
  withClients(async (client) => {
    const [undone, open] = ['undone', 'open'].map((name) => new JoinedCall(database, client, name))
    await client.query('begin')
    await client.query('savepoint s')
    await undone?.open()
    await client.query('rollback to s')
    await open?.open()
    await undone?.close()
    await expect(client.query('commit')).rejects.toMatchObject({
      detail: expect.stringContaining('(open)'),
    })
  }))
