import type { TextRow } from '../postgres/text-values.js'

export type ClaimStatus = 'pending' | 'active' | 'failed'

export type ClaimState =
  | 'claimed'
  | 'taken over'
  | 'replayed'
  | 'gave up'
  | 'mismatch'
  | 'in progress'
  | 'ambiguous'
  | 'nested'
  | 'busy'
  | 'stored'
  | 'lost'
  | 'absent'
  | 'over'
  | 'done'
  | 'void'
  | 'voided'

/** The result of the SQL function `claim_result`. Each state uses some of the fields. */
export interface ClaimResult {
  readonly state: ClaimState
  readonly key: string
  readonly id: string
  readonly status: ClaimStatus
  readonly fence: number
  readonly attempt: number
  readonly lost: number
  readonly holder: string
  /** The remaining time of the lease. */
  readonly leftMs: number | null
  /** The end of the lease, in microseconds since 1970. Null if `leftMs` is null. */
  readonly leaseUntil: number | null
  /** In microseconds since 1970. */
  readonly completedAt: number | null
  readonly hasOutcome: boolean
  readonly outcome: unknown
  readonly steps: Readonly<Record<string, string>> | null
}

/** Parses the result of an SQL function of claims. */
export function readResult(row: TextRow | undefined): ClaimResult {
  return JSON.parse(`${row?.result}`)
}
