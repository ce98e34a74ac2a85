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

/** What `claim_told` says of a claim; each state has a use for some of it. */
export interface ToldClaim {
  readonly state: ClaimState
  readonly key: string
  readonly id: string
  readonly status: ClaimStatus
  readonly fence: number
  readonly attempt: number
  readonly lost: number
  readonly holder: string
  /** Of its lease. */
  readonly leftMs: number | null
  /** The end of its lease, in microseconds since 1970. Null with `leftMs`. */
  readonly leaseUntil: number | null
  /** In microseconds since 1970. */
  readonly completedAt: number | null
  readonly hasOutcome: boolean
  readonly outcome: unknown
  readonly steps: Readonly<Record<string, string>> | null
}

/** The answer of one of our functions, in its one column. */
export function readTold(row: TextRow | undefined): ToldClaim {
  return JSON.parse(`${row?.told}`)
}
