import { RateLimitedError } from '../../errors.js'
import { resetsAtOf } from '../rate-limit/rate-spec.js'
import { RateClaim } from './acquire-claims.js'
import { type AcquireKind, busyWith } from './acquire-kind.js'

const itemOf = ({ name, subject, limit, cost, fields }: RateClaim) => ({
  name,
  subject,
  limit,
  cost,
  ...fields,
})

export const rateKind: AcquireKind<'rate'> = {
  type: RateClaim,
  duplicate: 'is in the list already: claim the sum',
  storesOutcome: false,
  hasFence: false,
  recognizesRepeat: false,

  nameOf: ({ name, subject }) => JSON.stringify([name, subject]),
  describe: ({ name }) => `rate "${name}"`,
  keepsFailure: () => false,
  queueKey: () => undefined,
  lockOf: () => undefined,

  item: itemOf,
  explain({ name, subject, limit, cost }, { isBusy, take }, waitedMs) {
    if (isBusy) return busyWith(`a turn at rate limit "${name}" of "${subject}"`, waitedMs)
    return new RateLimitedError({
      rateLimit: name,
      subject,
      limit,
      cost,
      remaining: Number(take?.remaining),
      retryAfterMs: Math.max(1, Math.ceil(Number(take?.retryAfterUs) / 1_000)),
      resetsAt: resetsAtOf(Number(take?.resetUs)),
    })
  },
  grant: (_, { take }) => ({
    remaining: Number(take?.remaining),
    resetsAt: resetsAtOf(Number(take?.resetUs)),
  }),
  leftMs: () => undefined,
  endJoined: (claim) => ({ kind: 'rate', ...itemOf(claim) }),
  // A leased attempt counts even if it fails.
  endLeased: () => undefined,
}
