/** A job that this process has claimed. */
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
  readonly batch: HeldBatch
}

/** The jobs that one claim gave to one worker; see `job_held` in sql/0026_job.sql. */
export interface HeldBatch {
  readonly id: number
  /** The number of these jobs that have not ended, as far as this process knows. */
  openCount: number
}

/** One value for all jobs, or one for each. */
type Column = number | readonly number[]

/** See `job_start` in sql/0029_job_claim.sql. */
export interface ClaimBlock {
  readonly worker: string
  readonly held: number
  readonly fence: number
  readonly id: readonly number[]
  readonly jobs: {
    readonly lane: Column
    readonly priority: Column
    readonly attempt: Column
    readonly maxAttempts: Column
    readonly keepDays: Column
    readonly createdAt: readonly number[]
    readonly correlationId: readonly (string | null)[] | null
    readonly input: readonly unknown[]
  }
}

/** In the order in which they are to run: by priority, then by age. */
export function readClaimBlock({ held: id, fence, id: ids, jobs }: ClaimBlock): ClaimedJob[] {
  const batch: HeldBatch = { id, openCount: ids.length }
  const of = (column: Column, n: number): number =>
    typeof column === 'number' ? column : (column[n] as number)
  return ids
    .map(
      (id, n): ClaimedJob => ({
        id,
        lane: of(jobs.lane, n),
        priority: of(jobs.priority, n),
        fence,
        attempt: of(jobs.attempt, n),
        maxAttempts: of(jobs.maxAttempts, n),
        keepDays: of(jobs.keepDays, n),
        createdAt: jobs.createdAt[n] as number,
        correlationId: jobs.correlationId?.[n] ?? null,
        input: jobs.input[n],
        batch,
      }),
    )
    .sort((one, other) => other.priority - one.priority || one.id - other.id)
}
