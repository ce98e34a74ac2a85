import type { Pool } from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, url, viaPgBouncer, withPool } from '../../test/database.js'
import { Database } from '../postgres/database.js'
import { lineOf, ReservedLine } from '../postgres/reserved-line.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'
import { type Kept, LockKeeper } from './lock-keeper.js'
import { renewLocks } from './lock-statements.js'

const fixture = openClaims()

const databaseOf = (pool: Pool): Database =>
  new Database(pool, { schema: fixture.schema.name, prepared: !viaPgBouncer })

/** Has a lock renewed that is due, and that the server says is lost. */
function add(
  keeper: LockKeeper,
  unanswered: string[],
  name: string,
  leaseMs = 60_000,
  endsInMs = leaseMs,
): void {
  const now = performance.now()
  const lock: Kept = {
    name,
    permit: 0,
    fence: 1,
    leaseMs,
    renewAt: now,
    endsAt: now + endsInMs,
    askFor: () => leaseMs,
    onRenewed: () => {},
    onUnanswered: () => void unanswered.push(name),
    onStolen: () => keeper.remove(lock),
  }
  keeper.add(lock)
}

/** A keeper of so many of them; the later ones end first. */
async function keeping(
  count: number,
  fn: (keeper: LockKeeper, unanswered: readonly string[], pool: Pool) => Promise<void>,
): Promise<void> {
  await withPool(
    async (pool) => {
      const keeper = new LockKeeper(databaseOf(pool))
      const unanswered: string[] = []
      for (let n = 0; n < count; n++) add(keeper, unanswered, `many:${n}`, 60_000, 60_000 - 30 * n)
      await fn(keeper, unanswered, pool)
    },
    { max: 1 },
  )
}

describe('of more locks than go with one statement', () => {
  it('those go first that end first', async () => {
    const send = vi.spyOn(ReservedLine.prototype, 'send')
    await keeping(600, async (keeper) => {
      await until(() => keeper.held.length === 0, 'all to be asked for')
      const [first] = send.mock.calls.filter(([statement]) => statement === renewLocks)
      const names = JSON.parse(`${first?.[1][0]}`).map(({ name }: Kept) => name)
      expect(names).toHaveLength(500)
      expect(names).toContain('many:599')
      expect(names).not.toContain('many:99')
    })
    send.mockRestore()
  })

  it('all are renewed though the whole pool is in use', async () => {
    await keeping(1_700, async (keeper, unanswered, pool) => {
      const client = await pool.connect()
      await until(() => keeper.held.length === 0, 'all to be asked for')
      client.release()
      expect(unanswered).toEqual([])
    })
  })
})

it('a lock does not wait behind another for a connection that is silent', async () => {
  await using proxy = await PgProxy.start({ url })
  await withPool(
    async (pool) => {
      const database = databaseOf(pool)
      const line = lineOf(database)
      const keeper = new LockKeeper(database)
      const unanswered: string[] = []
      line.enter()
      add(keeper, unanswered, 'first')
      await until(() => keeper.held.length === 0 && line.isOpen && !line.isBusy, 'the connection to be made')
      const cut = proxy.inject({
        ...{ kind: 'cut', when: 'before', statement: 'lock_renew', how: 'black-hole' },
      })
      add(keeper, unanswered, 'long')
      await cut.happened
      add(keeper, unanswered, 'short', 6_000)
      await until(() => keeper.held.length <= 1, 'the short one to be asked for')
      expect(unanswered).toEqual([])
      await until(() => keeper.held.length === 0, 'the long one to be asked for again')
      cut.end()
      line.leave()
    },
    { connectionString: proxy.url },
  )
})
