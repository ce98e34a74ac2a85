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
  readonly held: Held
}

/** What one claim has given to one worker; see `job_held` in sql/0020_job.sql. */
export interface Held {
  readonly id: number
  /** How many of them are not over, as far as this process knows. */
  left: number
}

/** One value of all, or one of each. */
type Column = number | readonly number[]

/** See `job_take` in sql/0022_job_claim.sql. */
export interface Block {
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

/** In the order in which they are to be run: lanes as they come, then priority, then age. */
export function readBlock({ held: id, fence, id: ids, jobs }: Block): ClaimedJob[] {
  const held: Held = { id, left: ids.length }
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
        held,
      }),
    )
    .sort((one, other) => other.priority - one.priority || one.id - other.id)
}
