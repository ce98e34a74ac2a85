import {
  type AcquireFailure,
  AcquireRefusedError,
  FingerprintMismatchError,
  HoldEndedError,
  NeverFitsError,
} from '../../errors.js'
import type { ClaimResult } from '../claim-result.js'
import { kindOf } from './acquire-kinds.js'
import type { AcquireItem, AcquireResult, ItemResult } from './acquire-result.js'

/** The errors that an unchanged call would get again. */
const mistakes = [FingerprintMismatchError, NeverFitsError, HoldEndedError]

/** Collects the reason of each refused claim in one error. */
export function readRefusal(
  items: readonly AcquireItem[],
  result: Pick<AcquireResult, 'results' | 'isFinal'>,
  waitedMs: number,
  replayed: boolean,
): AcquireRefusedError {
  const failures = items.flatMap((item, n): AcquireFailure[] => {
    const one = result.results[n]
    if (!one || one.granted) return []
    return [{ index: item.index, kind: item.kind, error: kindOf(item).explain(item, one, waitedMs) }]
  })
  const isFinal =
    result.isFinal || failures.some(({ error }) => mistakes.some((type) => error instanceof type))
  return new AcquireRefusedError(
    failures.sort((a, b) => a.index - b.index),
    isFinal,
    replayed,
  )
}

/** Restores a refusal that was stored as the outcome of an idempotency key. Returns undefined if the outcome is another. */
export function readStoredRefusal({ status, outcome }: ClaimResult): AcquireRefusedError | undefined {
  const stored = outcome as
    | { readonly name?: string; readonly fields?: { items?: AcquireItem[]; results?: ItemResult[] } }
    | undefined
  // An error of this name that a function threw has no items.
  const { items, results } = stored?.fields ?? {}
  if (status !== 'failed' || stored?.name !== 'AcquireRefusedError' || !items || !results) return undefined
  return readRefusal(items, { results, isFinal: true }, 0, true)
}
