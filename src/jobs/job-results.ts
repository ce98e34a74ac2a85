import { BusyError, JobCanceledError, JobExpiredError, NotFoundError } from '../errors.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration } from '../options/number-options.js'
import { optionTable } from '../options/option-table.js'
import type { Database } from '../postgres/database.js'
import {
  decodeCursor,
  type Page,
  type PageOptions,
  pageOptions,
  toPage,
  WHOLE_NUMBER,
} from '../postgres/page.js'
import { retry } from '../postgres/retry.js'
import { sleep } from '../postgres/sleep.js'
import { parseStored } from '../postgres/standard-schema.js'
import { restoreFailure } from '../postgres/stored-failure.js'
import { readHistory, readJob, readTakers } from './inspection-queries.js'
import type { ResolvedDefinition } from './job-definition.js'
import { type AttemptRecord, type JobRecord, readAttempt, readRecord } from './job-record.js'
import { assertAllNamed, assertNamed, type ResolvedTarget } from './job-ref.js'

export interface ResultOptions {
  /** How long to wait for the job to end. Default 0. */
  readonly waitMs?: number | undefined
}

export const resultOptions = optionTable<ResultOptions>()('jobs.result', {
  waitMs: duration({ default: 0, min: 0, max: MAX_TIMER_MS }),
})

/** The polling interval grows from `FIRST_MS` to `LAST_MS`. */
const FIRST_MS = 10
const LAST_MS = 250

export async function readJobOn(database: Database, target: ResolvedTarget): Promise<JobRecord | undefined> {
  const read = async () => (await database.send(readJob, [target.id]))[0]
  // If the job ended while the statement was planned, the first read may miss it: the plan lacks the partition that was created
  // for its attempt, and the snapshot, which is newer than the plan, lacks the live job.
  const row = (await read()) ?? (await read()) // guard: job.read-twice
  if (!row) return undefined
  assertNamed(target, `${row.name}`)
  return readRecord(row)
}

export async function readHistoryOn(
  database: Database,
  target: ResolvedTarget,
  page: PageOptions,
): Promise<Page<AttemptRecord>> {
  const { limit, cursor } = pageOptions.read(page)
  const place = decodeCursor('history', cursor, [WHOLE_NUMBER, WHOLE_NUMBER]) ?? ['0', '0']
  await assertAllNamed(database, [target])
  const rows = await database.send(readHistory, [target.id, ...place, String(limit + 1)])
  return toPage('history', rows, limit, ({ endedAt, fence }) => [`${endedAt}`, `${fence}`], readAttempt)
}

export async function awaitResult(
  database: Database,
  target: ResolvedTarget,
  options: ResultOptions,
  definitions: ReadonlyMap<string, ResolvedDefinition>,
): Promise<unknown> {
  const { waitMs } = resultOptions.read(options)
  const { id } = target
  const until = performance.now() + waitMs
  for (let pauseMs = FIRST_MS; ; pauseMs = Math.min(LAST_MS, pauseMs * 1.5)) {
    // A full pool says nothing about the job.
    const job = await retry(() => readJobOn(database, target), {
      isRetryable: (error) => error instanceof BusyError && performance.now() < until,
      ...{ baseMs: LAST_MS, maxMs: LAST_MS },
      // The last read is at the end of the time, and not before.
      wait: (delayMs) => sleep(Math.max(0, Math.min(delayMs, until - performance.now()))),
    })
    if (!job) throw new NotFoundError(`job ${id}, or it is not kept any more`, 'job', id, { isRead: true })
    const subject = `job ${id} ("${job.name}")`
    if (job.state === 'succeeded')
      return await parseStored(
        definitions.get(job.name)?.result,
        job.result ?? null,
        `the result of ${subject}`,
      )
    if (job.state === 'dead' || job.state === 'failed') throw restoreFailure(job.error)
    if (job.state === 'canceled') throw new JobCanceledError(subject, reasonOf(job))
    if (job.state === 'expired') throw new JobExpiredError(subject, job.attempt, messageOf(job))
    const leftMs = until - performance.now()
    if (leftMs <= 0) {
      const why = waitMs > 0 ? await whyNotEnded(database, job) : ''
      const { worker: holder, leaseUntil } = job
      throw new BusyError(`the end of ${subject}, which is ${job.state}${why}`, waitMs, 1_000, {
        holder,
        leaseUntil,
      })
    }
    await sleep(Math.min(pauseMs, leftMs))
  }
}

/** The reason that the caller of `cancel` gave. A job that was lost after it was canceled has another error. */
const reasonOf = ({ error }: JobRecord): string | undefined =>
  error?.name === 'JobCanceledError' ? error.message || undefined : undefined

/** The error message of the last attempt. A snoozed attempt has not failed. */
const messageOf = ({ error }: JobRecord): string | undefined =>
  error?.name === 'SnoozeError' ? undefined : error?.message

/** Explains a timed-out wait. If the reason cannot be read, the caller still gets its `BusyError`, without the reason. */
async function whyNotEnded(database: Database, job: JobRecord): Promise<string> {
  const { queue, name, version, state, attempt } = job
  const failure = state === 'scheduled' && messageOf(job)
  if (failure) return ` (attempt ${attempt} has failed: ${failure})`
  if (state !== 'ready') return ''
  const [row] = await database.send(readTakers, [queue, name, String(version)]).catch(() => [])
  if (row?.isPaused === 'true') return ' (its queue is paused)'
  return row?.isTaken === 'false' ? ' (no worker that is alive takes it)' : ''
}
