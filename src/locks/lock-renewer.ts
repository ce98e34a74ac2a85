import { LeaseRenewer, type Renewal, type RenewalState } from '../leases/lease-renewer.js'
import { sendRenewal } from '../leases/send-renewal.js'
import type { Database } from '../postgres/database.js'
import { renewalConnectionOf } from '../postgres/dedicated-connection.js'
import type { LockLease } from './lock-context.js'
import { renewLock, renewLocks } from './lock-statements.js'

/** Renews the locks of an instance. A held lock does not keep the process alive. */
export function newLockRenewer(database: Database): LeaseRenewer<LockLease> {
  const renew = async (renewals: readonly Renewal<LockLease>[], patienceMs: number) => {
    const requests = renewals.map(({ lease: { name, permit, fence }, forMs }) => ({
      name,
      permit,
      fence,
      ttlMs: forMs,
    }))
    const [row] = await sendRenewal(database, renewLocks, [JSON.stringify(requests)], patienceMs)
    return JSON.parse(`${row?.states}`) as RenewalState[]
  }
  const renewLocked = async ({ lease, forMs }: Renewal<LockLease>, waitMs: number) => {
    const values = [lease.name, ...[lease.permit, lease.fence, forMs, waitMs].map(String)]
    const options = { deadlineMs: 2 * waitMs, duringClose: true }
    const [row] = await database.send(renewLock, values, options)
    return row?.state as RenewalState
  }
  return new LeaseRenewer({
    ...{ renew, renewLocked, maxBatch: 500, maxInFlight: 2, keepsProcessAlive: false },
    connection: renewalConnectionOf(database),
  })
}
