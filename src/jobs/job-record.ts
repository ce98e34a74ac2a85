import type { StoredFailure } from '../postgres/stored-failure.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'

/** The state of a job. `failed`: the job was dead, and was discarded. */
export type JobState =
  | 'ready'
  | 'scheduled'
  | 'gated'
  | 'running'
  | 'dead'
  | 'succeeded'
  | 'failed'
  | 'canceled'
  | 'expired'

/** A job as it is now, or as it was when it ended. */
export interface JobRecord {
  readonly id: string
  readonly name: string
  readonly queue: string
  readonly version: number
  readonly state: JobState
  readonly priority: number
  readonly attempt: number
  /** Undefined if the job has ended. */
  readonly maxAttempts: number | undefined
  /** The fence of the last claim. 0: no worker has claimed the job. */
  readonly fence: number
  readonly createdAt: Date
  readonly runAt: Date | undefined
  readonly startedAt: Date | undefined
  readonly endedAt: Date | undefined
  readonly leaseUntil: Date | undefined
  readonly expiresAt: Date | undefined
  /** True if the job runs and its worker was told to stop it. */
  readonly isCanceling: boolean
  readonly worker: string | undefined
  readonly correlationId: string | undefined
  readonly input: unknown
  readonly progress: unknown
  readonly result: unknown
  readonly error: StoredFailure | undefined
}

/** One attempt that has ended. */
export interface AttemptRecord {
  readonly attempt: number
  readonly fence: number
  readonly outcome: 'succeeded' | 'failed' | 'canceled' | 'expired' | 'lost'
  readonly startedAt: Date | undefined
  readonly endedAt: Date
  readonly worker: string | undefined
  readonly correlationId: string | undefined
  readonly result: unknown
  readonly error: StoredFailure | undefined
}

export const time = (micros: string | null | undefined): Date | undefined =>
  micros == null ? undefined : dateFromMicros(micros)

const json = (text: string | null | undefined): unknown => (text == null ? undefined : JSON.parse(text))

const number = (text: string | null | undefined): number | undefined =>
  text == null ? undefined : Number(text)

export function readRecord(row: TextRow): JobRecord {
  // The last attempt of a dead job may have been lost with its worker.
  const state = row.state === 'lost' ? 'failed' : (row.state as JobState)
  return {
    id: `${row.id}`,
    name: `${row.name}`,
    queue: `${row.queue}`,
    version: Number(row.version),
    state,
    priority: Number(row.priority),
    attempt: Number(row.attempt),
    maxAttempts: number(row.maxAttempts),
    fence: Number(row.fence),
    createdAt: dateFromMicros(`${row.createdAt}`),
    runAt: time(row.runAt),
    startedAt: time(row.startedAt),
    endedAt: time(row.endedAt),
    leaseUntil: time(row.leaseUntil),
    expiresAt: time(row.expiresAt),
    isCanceling: row.isCanceling === 'true',
    worker: row.worker ?? undefined,
    correlationId: row.correlationId ?? undefined,
    input: json(row.input),
    progress: json(row.progress),
    result: json(row.result),
    error: json(row.error) as StoredFailure | undefined,
  }
}

export function readAttempt(row: TextRow): AttemptRecord {
  return {
    attempt: Number(row.attempt),
    fence: Number(row.fence),
    outcome: row.outcome as AttemptRecord['outcome'],
    startedAt: time(row.startedAt),
    endedAt: dateFromMicros(`${row.endedAt}`),
    worker: row.worker ?? undefined,
    correlationId: row.correlationId ?? undefined,
    result: json(row.result),
    error: json(row.error) as StoredFailure | undefined,
  }
}
