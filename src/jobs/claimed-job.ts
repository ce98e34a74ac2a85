/** A job as a claim tells it; by column in `Block`. */
export interface ClaimedJob {
  readonly id: number
  readonly lane: number
  readonly priority: number
  readonly fence: number
  /** From 1. */
  readonly attempt: number
  readonly maxAttempts: number
  readonly keepDays: number
  /** In microseconds since 1970. */
  readonly createdAt: number
  readonly correlationId: string | null
  readonly input: unknown
}

/** How many were found that had expired. */
export interface Expired {
  readonly expired: number
}

/** What one worker has got; see `job_take` in sql/0022_job_claim.sql. */
export interface Block {
  readonly worker: string
  readonly id: readonly number[]
  readonly lane: readonly number[]
  readonly priority: readonly number[]
  readonly fence: readonly number[]
  readonly attempt: readonly number[]
  readonly maxAttempts: readonly number[]
  readonly keepDays: readonly number[]
  readonly createdAt: readonly number[]
  readonly correlationId: readonly (string | null)[] | null
  readonly input: readonly unknown[]
}

/** In the order in which they are to be run: lanes as they come, then priority, then age. */
export function readBlock(block: Block): ClaimedJob[] {
  const jobs = block.id.map(
    (id, n): ClaimedJob => ({
      id,
      lane: block.lane[n] as number,
      priority: block.priority[n] as number,
      fence: block.fence[n] as number,
      attempt: block.attempt[n] as number,
      maxAttempts: block.maxAttempts[n] as number,
      keepDays: block.keepDays[n] as number,
      createdAt: block.createdAt[n] as number,
      correlationId: block.correlationId?.[n] ?? null,
      input: block.input[n],
    }),
  )
  return jobs.sort((one, other) => other.priority - one.priority || one.id - other.id)
}
