import { InvalidInputError } from '../../errors.js'
import { showGiven } from '../../options/name-given.js'

/**
 * Which responses are stored and replayed. After any other response the key stays free, and a repetition runs the handler again.
 *
 * - `final` (default): 2xx, 3xx and 4xx, which a repetition would get again
 * - `stripe-v1`: the first response, also 5xx
 * - `stripe-v2`: success only; a failed request may be repeated
 *
 * No policy stores a response that says nothing about the operation: the client is not known or not allowed (401, 403, 407), or must repeat the request
 * later (408, 423, 425, 429) or in another form (428).
 */
export type StorePolicy = 'final' | 'stripe-v1' | 'stripe-v2' | ((status: number) => boolean)

const never = new Set([401, 403, 407, 408, 423, 425, 428, 429]) // guard: http.no-passing-stored

const policies: Readonly<Record<Extract<StorePolicy, string>, (status: number) => boolean>> = {
  final: (status) => status < 500 && !never.has(status), // guard: http.no-5xx-stored
  'stripe-v1': (status) => !never.has(status),
  'stripe-v2': (status) => status < 400,
}

export const storePredicate = (policy: StorePolicy): ((status: number) => boolean) =>
  typeof policy === 'function' ? policy : policies[policy]

export function checkStorePolicy(field: string, policy: unknown): void {
  if (typeof policy === 'function' || (typeof policy === 'string' && Object.hasOwn(policies, policy))) return
  const names = Object.keys(policies).map((name) => `'${name}'`)
  throw new InvalidInputError(
    field,
    `must be ${names.join(', ')} or a function of the status, not ${showGiven(policy)}`,
  )
}
