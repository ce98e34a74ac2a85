import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../postgres/name-given.js'

/**
 * Which responses are stored and replayed; others leave the key free, and the request is carried out again.
 *
 * - `final` (default): what would end the same way again: 2xx, 3xx, and 4xx
 * - `stripe-v1`: whatever came of it first, 5xx too
 * - `stripe-v2`: success; what has failed is tried again
 *
 * None of them stores what says nothing about the operation itself: who asks is not known or not allowed (401, 403, 407), or not now (408, 423,
 * 425, 429), or not like this (428).
 */
export type StorePolicy = 'final' | 'stripe-v1' | 'stripe-v2' | ((status: number) => boolean)

const never = new Set([401, 403, 407, 408, 423, 425, 428, 429])

const policies: Readonly<Record<string, (status: number) => boolean>> = {
  final: (status) => status < 500 && !never.has(status),
  'stripe-v1': (status) => !never.has(status),
  'stripe-v2': (status) => status < 400,
}

export function readStorePolicy(policy: StorePolicy): (status: number) => boolean {
  if (typeof policy === 'function') return policy
  const known = Object.hasOwn(policies, policy) ? policies[policy] : undefined
  if (known) return known
  const given = typeof policy === 'string' ? JSON.stringify(policy) : nameGiven(policy)
  throw new InvalidInputError(
    'store',
    `must be ${Object.keys(policies)
      .map((name) => `'${name}'`)
      .join(', ')} or a function of the status, not ${given}`,
  )
}
