import { InvalidInputError } from '../../errors.js'
import { type AnyClaim, type ItemKind, OnceClaim } from './acquire-claims.js'
import type { AcquireKind, ItemClaim } from './acquire-kind.js'
import { lockKind } from './lock-kind.js'
import { quotaKind } from './quota-kind.js'
import { rateKind } from './rate-kind.js'
import { singletonKind } from './singleton-kind.js'

/** Every kind, in the order in which all callers lock their claims. */
const kinds: { readonly [K in ItemKind]: AcquireKind<K> } = {
  singleton: singletonKind,
  quota: quotaKind,
  rate: rateKind,
  lock: lockKind,
}

export const kindOf = <K extends ItemKind>({ kind }: { readonly kind: K }): AcquireKind<K> => kinds[kind]

const MAX_CLAIMS = 50

const isClaim = (claim: unknown): boolean =>
  [OnceClaim, ...Object.values(kinds).map(({ type }) => type)].some((type) => claim instanceof type)

/** Refuses claims that cannot be made together. */
export function checkClaims(claims: readonly AnyClaim[]): void {
  if (!Array.isArray(claims) || claims.length === 0 || claims.length > MAX_CLAIMS)
    throw new InvalidInputError('claims', `must be an array of 1 to ${MAX_CLAIMS} claims`)
  const seen = new Set<string>()
  for (const [index, claim] of claims.entries()) {
    if (!isClaim(claim))
      throw new InvalidInputError(
        `claims[${index}]`,
        'must be made by claim.once, claim.singleton, claim.lock, quota.claim or rateLimit.claim',
      )
    const [name, duplicate] =
      claim.kind === 'once'
        ? ['', 'is a second idempotency key; there can be one']
        : [kindOf(claim).nameOf(claim), kindOf(claim).duplicate]
    const id = JSON.stringify([claim.kind, name])
    // guard: acquire.claims-unique
    if (seen.has(id)) throw new InvalidInputError(`claims[${index}]`, duplicate)
    seen.add(id)
  }
}

export interface SortedClaim {
  readonly claim: ItemClaim
  /** The index of the claim in the caller's list. */
  readonly index: number
}

/** Sorts all claims but the idempotency key by kind and then by name, in one order for all callers. */
export function sortClaims(claims: readonly AnyClaim[]): SortedClaim[] {
  const order = Object.keys(kinds)
  return claims
    .flatMap((claim, index) => (claim.kind === 'once' ? [] : [{ claim, index }]))
    .sort(
      (a, b) =>
        // guard: acquire.claims-order {
        order.indexOf(a.claim.kind) - order.indexOf(b.claim.kind) ||
        Buffer.compare(
          Buffer.from(kindOf(a.claim).nameOf(a.claim)),
          Buffer.from(kindOf(b.claim).nameOf(b.claim)),
        ) ||
        // guard: acquire.claims-order }
        a.index - b.index,
    )
}
