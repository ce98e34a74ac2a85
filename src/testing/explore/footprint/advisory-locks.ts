import { ADVISORY, EMPTY, type Footprint, SHARE, UPDATE } from './footprint.js'

const CALL = /^pg_(try_)?advisory_(?:xact_)?(lock|unlock)(_shared|_all)?$/

/** The key of an advisory lock; undefined if it is not a constant. */
export const advisoryKey = (parameters: readonly (string | null | undefined)[]): string | undefined =>
  parameters.every((text) => typeof text === 'string' && /^-?\d{1,18}$/.test(text))
    ? parameters.map((text) => BigInt(text as string)).join()
    : undefined

/** The footprint of a call of one of PostgreSQL's functions for advisory locks; undefined for any other function. */
export function advisoryLock(
  name: string,
  parameters: readonly (string | null | undefined)[],
): Partial<Footprint> | undefined {
  const found = CALL.exec(name)
  if (!found) return undefined
  // The release needs no dependence: a unit that waits for the lock goes on as if it had started after the release.
  if (found[2] === 'unlock') return EMPTY
  const key = advisoryKey(parameters)
  const resource = { table: ADVISORY, index: 'key', keys: key === undefined ? undefined : new Set([key]) }
  return {
    locks: [{ resource, strength: found[3] === '_shared' ? SHARE : UPDATE, isOfExistingRow: false }],
    ...(found[1] ? { lockProbes: [resource] } : {}),
  }
}
