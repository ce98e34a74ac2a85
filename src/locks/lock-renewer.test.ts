import type { Pool } from 'pg'
import { describe, expect, it, vi } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { until, viaPgBouncer, withPool } from '../../test/database.js'
import type { LossReason } from '../errors.js'
import { Lease } from '../leases/lease.js'
import type { LeaseRenewer } from '../leases/lease-renewer.js'
import { Database } from '../postgres/database.js'
import { DedicatedConnection } from '../postgres/dedicated-connection.js'
import type { LockLease } from './lock-context.js'
import { newLockRenewer } from './lock-renewer.js'
import { renewLocks } from './lock-statements.js'

const fixture = openClaims()

const databaseOf = (pool: Pool): Database =>
  new Database(pool, { schema: fixture.schema.name, prepared: !viaPgBouncer })

/** The lease of a lock that is due at once, and that the server says is lost. */
class LostLock extends Lease implements LockLease {
  readonly permit = 0
  readonly fence = 1
  unanswered = 0

  constructor(
    readonly name: string,
    leaseMs: number,
    endsInMs = leaseMs,
  ) {
    super({ leaseMs, sentAt: performance.now(), leftMs: endsInMs })
    this.renewAt = performance.now()
  }

  override retryLater(): void {
    this.unanswered++
    super.retryLater()
  }

  protected override onLost(reason: LossReason): Error {
    return new Error(reason)
  }
}

/** A renewer of so many locks; the later ones end first. */
async function renewing(
  count: number,
  fn: (renewer: LeaseRenewer<LockLease>, locks: readonly LostLock[], pool: Pool) => Promise<void>,
): Promise<void> {
  await withPool(
    async (pool) => {
      const renewer = newLockRenewer(databaseOf(pool))
      const locks = Array.from(
        { length: count },
        (_, n) => new LostLock(`many:${n}`, 60_000, 60_000 - 30 * n),
      )
      for (const lock of locks) renewer.add(lock)
      await fn(renewer, locks, pool)
    },
    { max: 1 },
  )
}

describe('of more locks than share one statement', () => {
  it('those are renewed first that end first', async () => {
    const send = vi.spyOn(DedicatedConnection.prototype, 'send')
    await renewing(600, async (renewer) => {
      await until(() => renewer.leases.length === 0, 'all to be renewed')
      const [first] = send.mock.calls.filter(([statement]) => statement === renewLocks)
      const names = JSON.parse(`${first?.[1][0]}`).map(({ name }: LockLease) => name)
      expect(names).toHaveLength(500)
      expect(names).toContain('many:599')
      expect(names).not.toContain('many:99')
    })
    send.mockRestore()
  })

  it('all are renewed though the whole pool is in use', async () => {
    await renewing(1_700, async (renewer, locks, pool) => {
      const client = await pool.connect()
      await until(() => renewer.leases.length === 0, 'all to be renewed')
      client.release()
      expect(locks.filter(({ unanswered }) => unanswered > 0)).toEqual([])
    })
  })
})
