import { afterEach } from 'vitest'
import type { Claim } from '../../src/claims/claim.js'
import type { LeasedSpec, OnceResult } from '../../src/claims/once/once-spec.js'
import { deferred } from '../deferred.js'
import type { ClaimsFixture } from './open-claims.js'

const HOUR_MS = 3_600_000

/** Holders of a leased claim, who end with their test. */
export function holdersOf(
  fixture: ClaimsFixture,
  at: { readonly scope: string; readonly key: string; readonly mode: 'leased' },
) {
  const holders: ReturnType<typeof startHolder>[] = []
  afterEach(async () => {
    for (const holder of holders.splice(0)) {
      holder.finish(() => 'the test is over')
      await holder.ended.catch(() => {})
    }
  })

  /** A holder that works until it is told what to do. */
  function startHolder(spec: Partial<LeasedSpec> = {}): {
    began: Promise<Claim>
    finish: (how: () => unknown) => void
    ended: Promise<OnceResult<unknown>>
  } {
    const began = deferred<Claim>()
    const goOn = deferred<() => unknown>()
    const ended = fixture.dibs.onceDetailed({ ...at, leaseMs: HOUR_MS, ...spec }, async (claim) => {
      began.resolve(claim)
      return (await goOn.promise)()
    })
    ended.catch(() => {})
    const holder = { began: began.promise, finish: (how: () => unknown) => goOn.resolve(how), ended }
    holders.push(holder)
    return holder
  }

  /** A holder that is never heard of again: its lease has run out. */
  async function abandon(spec: Partial<LeasedSpec> = {}): Promise<Claim> {
    const { began } = startHolder(spec)
    const claim = await began
    await fixture.schema.clock.advance(HOUR_MS)
    return claim
  }

  return { startHolder, abandon }
}
