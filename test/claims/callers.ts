import type pg from 'pg'
import type { Tx } from '../../src/postgres/executor.js'
import { deferred } from '../deferred.js'
import type { ClaimsFixture } from './open-claims.js'

/** Callers of `once` with a key, and what they do. */
export function callersOf(fixture: ClaimsFixture, at: { readonly scope: string; readonly key: string }) {
  let runs = 0

  /** Writes a line, and answers with the number of its run. */
  const write =
    (name: string) =>
    async (tx: Tx): Promise<{ run: number }> => {
      await tx.query(`insert into ${fixture.log} (name) values ($1)`, [name])
      return { run: ++runs }
    }

  /** A call that has made its claim and goes on when told to. */
  function startSlowly(spec: object = {}) {
    const claimed = deferred()
    const goOn = deferred()
    const ended = fixture.dibs.once({ ...at, ...spec }, async (tx) => {
      const value = await write('slow')(tx)
      claimed.resolve()
      await goOn.promise
      return value
    })
    return { claimed: claimed.promise, goOn: goOn.resolve, ended }
  }

  /** A transaction of the caller's own, on a plain client. */
  async function inTransaction<T>(
    fn: (client: pg.PoolClient) => Promise<T>,
    { last = 'commit', isolation = 'read committed' } = {},
  ): Promise<T> {
    const client = await fixture.pool.connect()
    try {
      await client.query(`begin isolation level ${isolation}`)
      const value = await fn(client)
      await client.query(last)
      return value
    } catch (error) {
      await client.query('rollback')
      throw error
    } finally {
      client.release()
    }
  }

  async function waiters(): Promise<number> {
    const { rows } = await fixture.pool.query(
      `select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and query like $1`,
      [`%${fixture.schema.name}%`],
    )
    return rows[0].n
  }

  return { write, startSlowly, inTransaction, waiters }
}
