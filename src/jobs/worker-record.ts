import type { Database } from '../postgres/database.js'
import { dateFromMicros } from '../postgres/text-values.js'
import { listWorkers } from './record-statements.js'

/** A worker as others see it: a call of `dibs.work`, wherever it runs. */
export interface WorkerRecord {
  readonly id: string
  readonly host: string
  readonly pid: number
  readonly concurrency: number
  readonly startedAt: Date
  readonly seenAt: Date
  /** It was heard of in the last 30 seconds. */
  readonly isAlive: boolean
  /** What it may run. */
  readonly lanes: readonly { readonly queue: string; readonly name: string; readonly version: number }[]
  /** The ids of the jobs that it has. */
  readonly running: readonly string[]
}

export async function readWorkers(database: Database): Promise<WorkerRecord[]> {
  const rows = await database.send(listWorkers, [])
  return rows.map((row) => ({
    id: `${row.id}`,
    host: `${row.host}`,
    pid: Number(row.pid),
    concurrency: Number(row.concurrency),
    startedAt: dateFromMicros(`${row.startedAt}`),
    seenAt: dateFromMicros(`${row.seenAt}`),
    isAlive: row.isAlive === 'true',
    lanes: JSON.parse(row.lanes ?? '[]'),
    running: JSON.parse(row.running ?? '[]'),
  }))
}
