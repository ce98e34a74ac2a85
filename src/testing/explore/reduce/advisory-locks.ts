import { ADVISORY, EMPTY, type Footprint, SHARE, UPDATE } from './footprint.js'

const CALL = /^pg_(try_)?advisory_(?:xact_)?(lock|unlock)(_shared|_all)?$/

/** What a call of one of PostgreSQL's functions for advisory locks does; undefined for any other function. */
export function advisoryLock(
  name: string,
  parameters: readonly (string | null | undefined)[],
): Partial<Footprint> | undefined {
  const found = CALL.exec(name)
  if (!found) return undefined
  // Freeing: whoever waits goes on as if it had come later.
  if (found[2] === 'unlock') return EMPTY
  const isKnown = parameters.every((text) => typeof text === 'string' && /^-?\d{1,18}$/.test(text))
  const keys = isKnown ? new Set([parameters.map((text) => BigInt(text as string)).join()]) : undefined
  const place = { table: ADVISORY, index: 'key', keys }
  return {
    locks: [{ place, strength: found[3] === '_shared' ? SHARE : UPDATE, seeks: false }],
    ...(found[1] ? { tries: [place] } : {}),
  }
}
