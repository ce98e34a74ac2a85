import { HoldEndedError, NeverFitsError, QuotaExceededError } from '../../errors.js'
import { quotaMismatch, readUse } from '../quota/quota-result.js'
import { QuotaClaim } from './acquire-claims.js'
import { type AcquireKind, busyWith, type EndItem } from './acquire-kind.js'
import type { ItemResult } from './acquire-result.js'

/** An amount that was known under its id belongs to an earlier call. */
function endTake({ name, subject, amount }: QuotaClaim, { state, id }: ItemResult): EndItem | undefined {
  return state === 'known' ? undefined : { kind: 'take', name, subject, id: id ?? undefined, amount }
}

export const quotaKind: AcquireKind<'quota'> = {
  type: QuotaClaim,
  duplicate: 'is in the list already: claim the sum',
  storesOutcome: false,
  hasFence: false,
  recognizesRepeat: true,

  nameOf: ({ name, subject }) => JSON.stringify([name, subject]),
  describe: ({ name }) => `quota "${name}"`,
  keepsFailure: () => false,
  queueKey: () => undefined,
  lockOf: () => undefined,

  item({ name, subject, limit, amount, fields }, { id, isLeased }) {
    const { ledger, ...others } = fields
    // `acquire` makes the id of a leased reservation from that of the call, so that later attempts find the reservation.
    return { ...(ledger && !isLeased ? { id } : {}), name, subject, limit, amount, ...others }
  },
  explain({ name, subject, limit, amount }, { isBusy, state, id, row, take }, waitedMs) {
    if (isBusy) return busyWith(`a turn at quota "${name}" of "${subject}"`, waitedMs)
    if (state === 'mismatch') return quotaMismatch(name, `${id}`)
    if (state === 'ended') return new HoldEndedError(name, `${id}`, take?.entry ?? 'unknown', 'taken again')
    if (amount > limit) return new NeverFitsError(`quota "${name}" of "${subject}"`, amount, limit)
    const freeInUs = take?.freeInUs ?? null
    return new QuotaExceededError({
      ...readUse(row ?? null, limit),
      quota: name,
      subject,
      requested: amount,
      retryAfterMs: freeInUs === null ? undefined : Math.max(1, Math.ceil(freeInUs / 1_000)),
    })
  },
  grant({ limit }, { row, state, id }) {
    return { ...readUse(row ?? null, limit), replayed: state === 'known', ...(id ? { id } : {}) }
  },
  leftMs: () => undefined,
  endJoined: endTake,
  endLeased(claim, result) {
    if (result.take?.entry === 'taken') return endTake(claim, result)
    const { name, subject, amount, limit, fields } = claim
    return { kind: 'hold', name, subject, id: result.id ?? undefined, amount, limit, per: fields.per }
  },
}
