import { describe, expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { HeldLock } from './held-lock.js'

const fixture = openClaims()

describe('of two renewals that are on their way', () => {
  it('the earlier may be answered last, and does not shorten the lease', async () => {
    const lock = (await fixture.dibs.lock('till', { leaseMs: 60_000 })) as HeldLock
    expect(lock).toBeInstanceOf(HeldLock)
    const now = performance.now()
    lock.onRenewed(now, 60_000)
    const { renewAt } = lock
    lock.onRenewed(now - 59_000, 60_000)
    expect(lock.renewAt).toBe(renewAt)
    lock.onRenewed(now + 1, 60_000)
    expect(lock.renewAt).toBeGreaterThan(renewAt)
    await lock.release()
  })
})
