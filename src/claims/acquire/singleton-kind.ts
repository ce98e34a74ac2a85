import { randomUUID } from 'node:crypto'
import { AmbiguousOutcomeError, SingletonConflictError, type SlotBounds } from '../../errors.js'
import { addressOf, nameScope, singletonOf } from '../../postgres/key.js'
import { restoreFailure } from '../../postgres/stored-failure.js'
import { dateFromMicros } from '../../postgres/text-values.js'
import { readHeld } from '../../postgres/this-process.js'
import type { Ending } from '../claim-call.js'
import { givenUpOutcome } from '../once/once-call.js'
import { SingletonClaim } from './acquire-claims.js'
import { type AcquireKind, busyWith, type EndItem } from './acquire-kind.js'
import type { ItemResult } from './acquire-result.js'
import { endClaim } from './end-claim.js'

/** The stored error name of a slot that was undone and is still kept. */
export const VOID = 'SlotVoided'

/** A slot that is not kept is free at once, even if the outcome of the idempotency key is unknown. */
function endSlot(
  { scope, keeps }: SingletonClaim,
  { claim, slot, keepMs }: ItemResult,
  ending: Ending,
): EndItem {
  const row = { scope, key: `${slot?.key}`, fence: Number(claim?.fence), keepMs: String(keepMs) }
  return endClaim(row, keeps, { ...ending, retryInMs: null })
}

export const singletonKind: AcquireKind<'singleton'> = {
  type: SingletonClaim,
  duplicate: 'is in the list already',
  storesOutcome: true,
  hasFence: true,
  recognizesRepeat: true,

  nameOf: ({ scope }) => scope,
  describe: ({ scope }) => `a slot ${nameScope(scope)}`,
  keepsFailure: ({ keeps }) => keeps,
  queueKey: ({ scope }) => scope,
  lockOf: () => undefined,

  item: ({ scope, period, holder, keepMs, keeps, maxAttempts }, { nowMs }) => ({
    scope,
    per: period(nowMs),
    id: randomUUID(),
    by: holder,
    keepMs,
    // A slot that is kept after a failure is also kept when nobody knows whether the work failed.
    hold: keeps,
    maxLost: maxAttempts,
    gaveUp: JSON.parse(givenUpOutcome(maxAttempts)),
  }),
  explain({ scope }, { isBusy, state, claim, slot, by, since }, waitedMs) {
    const subject = `slot ${slot?.key} ${nameScope(scope)}`
    if (isBusy || !claim || !slot) return busyWith(`another transaction that claims ${subject}`, waitedMs)
    if (state === 'ambiguous')
      return new AmbiguousOutcomeError(subject, claim.id, claim.attempt, {
        address: addressOf(scope, slot.key),
      })
    const isActive = claim.status === 'active'
    const failure = claim.status === 'failed' ? (claim.outcome as { readonly name?: string }) : undefined
    return new SingletonConflictError({
      scope: singletonOf(scope) ?? scope,
      slot: readBounds(slot),
      id: claim.id,
      holder: by ?? undefined,
      since: since ? dateFromMicros(String(since)) : undefined,
      state: failure?.name === VOID ? 'void' : claim.status,
      result: isActive && claim.hasOutcome ? claim.outcome : undefined,
      leaseUntil: readHeld(claim).leaseUntil,
      retryAfterMs: claim.leftMs ?? undefined,
      cause: failure && failure.name !== VOID ? restoreFailure(failure) : undefined,
    })
  },
  grant: (_, { claim, slot }) => ({ ...readBounds(slot), id: `${claim?.id}`, fence: Number(claim?.fence) }),
  leftMs: ({ claim }) => claim?.leftMs,
  endJoined: endSlot,
  endLeased: endSlot,
}

function readBounds(slot: ItemResult['slot']): SlotBounds {
  return {
    key: `${slot?.key}`,
    startsAt: dateFromMicros(`${slot?.startsAt}`),
    endsAt: dateFromMicros(`${slot?.endsAt}`),
  }
}
