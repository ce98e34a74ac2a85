import type { Ending } from '../claim-call.js'
import type { EndItem } from './acquire-kind.js'

interface ClaimToEnd {
  readonly scope: string
  readonly key: string
  readonly fence: number
  /** Null means forever. */
  readonly keepMs: string | null
}

/**
 * Writes how the claim of an idempotency key or a slot ends.
 *
 * @param isKept true if the claim stays, with the error, when the function fails
 */
export function endClaim(
  { scope, key, fence, keepMs }: ClaimToEnd,
  isKept: boolean,
  ending: Ending,
): EndItem {
  const { kind, json, retryInMs = null } = ending
  const claim = {
    kind: 'claim',
    scope,
    key,
    fence,
    ...(keepMs === null ? {} : { keepMs: Number(keepMs) }),
  } as const
  if (kind === 'done') return { ...claim, status: 'active', outcome: json }
  if (kind === 'unstorable' || isKept) return { ...claim, status: 'failed', outcome: json }
  return { ...claim, ...(retryInMs === null ? {} : { restMs: retryInMs }), error: JSON.parse(json ?? 'null') }
}
