import type { TextRow } from '../postgres/text-values.js'

export type ClaimStatus = 'pending' | 'active' | 'failed'

/** A row of the table `claim`, as far as running it needs to know. */
export interface ClaimRow {
  readonly key: string
  readonly id: string
  readonly status: ClaimStatus
  readonly fence: number
  readonly attempt: number
  readonly lost: number
  readonly outcome: string | null
  readonly input: string | null
  readonly steps: string
  readonly completedAt: string | null
}

/** The columns of a claim that a function has answered with, as text. */
export const claimColumns = `
  (f.claim).key::text as key, (f.claim).id::text as id, (f.claim).status::text as status, (f.claim).fence::text as fence,
  (f.claim).attempt::text as attempt, (f.claim).lost::text as lost, (f.claim).outcome::text as outcome,
  (f.claim).input::text as input, (f.claim).steps::text as steps,
  (extract(epoch from (f.claim).completed_at) * 1000000)::bigint::text as completed_at`

export function readClaim(row: TextRow): ClaimRow {
  return {
    key: `${row.key}`,
    id: `${row.id}`,
    status: row.status as ClaimStatus,
    fence: Number(row.fence),
    attempt: Number(row.attempt),
    lost: Number(row.lost),
    outcome: row.outcome ?? null,
    input: row.input ?? null,
    steps: row.steps ?? '{}',
    completedAt: row.completed_at ?? null,
  }
}
