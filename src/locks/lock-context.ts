import type { Lease } from '../leases/lease.js'
import type { LeaseRenewer } from '../leases/lease-renewer.js'
import type { Database } from '../postgres/database.js'
import type { Wakeups } from '../postgres/wakeups.js'

/** The parts that the locks of an instance share. */
export interface LockContext {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly renewer: LeaseRenewer<LockLease>
}

/** The result of `lock_acquire` for a lock that was granted. */
export interface GrantedLock {
  readonly permit: number
  readonly holder: string
  readonly fence: number
  /** In microseconds since 1970, like all times of the database here. */
  readonly acquiredAt: number
  readonly leftMs: number
  /** The previous holder, if its lease expired. */
  readonly from: { readonly holder: string; readonly fence: number; readonly expiredAt: number } | null
}

/** Identifies one grant of a lock. */
export interface LockIdentity {
  readonly name: string
  readonly permit: number
  readonly holder: string
  readonly fence: number
}

/** The lease of a held lock. */
export type LockLease = Lease & Omit<LockIdentity, 'holder'>
