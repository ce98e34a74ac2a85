import type { Pool } from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, viaPgBouncer, withPool } from '../../test/database.js'
import { Database } from '../postgres/database.js'
import { ReservedLine } from '../postgres/reserved-line.js'
import { type Kept, LockKeeper } from './lock-keeper.js'
import { renewLocks } from './lock-statements.js'

const fixture = openClaims()

/** A keeper of so many locks that all are due, and that the server says are lost; the later ones end first. */
async function keeping(
  count: number,
  fn: (keeper: LockKeeper, unanswered: readonly string[], pool: Pool) => Promise<void>,
): Promise<void> {
  await withPool(
    async (pool) => {
      const schema = fixture.schema.name
      const keeper = new LockKeeper(new Database(pool, { schema, prepared: !viaPgBouncer }))
      const unanswered: string[] = []
      const now = performance.now()
      for (let n = 0; n < count; n++) {
        const lock: Kept = {
          name: `many:${n}`,
          permit: 0,
          fence: 1,
          ttlMs: 60_000,
          renewAt: now,
          endsAt: now + 60_000 - n,
          askFor: () => 60_000,
          onRenewed: () => {},
          onUnanswered: () => void unanswered.push(lock.name),
          onStolen: () => keeper.remove(lock),
        }
        keeper.add(lock)
      }
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
