import { BusyError, JobCanceledError, JobExpiredError, NotFoundError } from '../errors.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import {
  checkPageLimit,
  decodeCursor,
  PAGE_OPTIONS,
  type Page,
  type PageOptions,
  toPage,
  WHOLE_NUMBER,
} from '../postgres/page.js'
import { sleep } from '../postgres/sleep.js'
import { parseStored } from '../postgres/standard-schema.js'
import { restoreFailure } from '../postgres/stored-failure.js'
import { type AttemptRecord, type JobRecord, readAttempt, readRecord } from './job-record.js'
import { assertAllNamed, assertNamed, type ReadTarget } from './job-ref.js'
import type { ReadDefinition } from './job-spec.js'
import { readHistory, readJob, readTakers } from './record-statements.js'

export interface ResultOptions {
  /** How long to wait for the job to end. Default 0. */
  readonly waitMs?: number | undefined
}

/** The polling interval grows from `FIRST_MS` to `LAST_MS`. */
const FIRST_MS = 10
const LAST_MS = 250

export async function readJobOn(database: Database, target: ReadTarget): Promise<JobRecord | undefined> {
  const [row] = await database.send(readJob, [target.id])
  if (!row) return undefined
  assertNamed(target, `${row.name}`)
  return readRecord(row)
}

export async function readHistoryOn(
  database: Database,
  target: ReadTarget,
  page: PageOptions,
): Promise<Page<AttemptRecord>> {
  checkOptions(page, PAGE_OPTIONS)
  const limit = checkPageLimit(page.limit)
  const place = decodeCursor('history', page.cursor, [WHOLE_NUMBER, WHOLE_NUMBER]) ?? ['0', '0']
  await assertAllNamed(database, [target])
  const rows = await database.send(readHistory, [target.id, ...place, String(limit + 1)])
  return toPage('history', rows, limit, ({ endedAt, fence }) => [`${endedAt}`, `${fence}`], readAttempt)
}

export async function awaitResult(
  database: Database,
  target: ReadTarget,
  options: ResultOptions,
  definitions: ReadonlyMap<string, ReadDefinition>,
): Promise<unknown> {
  checkOptions(options, ['waitMs'])
  const waitMs = checkDuration('waitMs', options.waitMs ?? 0, 0, MAX_TIMER_MS)
  const { id } = target
  const until = performance.now() + waitMs
  for (let pauseMs = FIRST_MS; ; pauseMs = Math.min(LAST_MS, pauseMs * 1.5)) {
    const job = await readInTime(database, target, until)
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
      const why = waitMs > 0 ? await whyNotOver(database, job) : ''
      const { worker: holder, leaseUntil } = job
      throw new BusyError(`the end of ${subject}, which is ${job.state}${why}`, waitMs, 1_000, {
        holder,
        leaseUntil,
      })
    }
    await sleep(Math.min(pauseMs, leftMs))
  }
}

/** A full pool says nothing about the job, so the read is repeated while there is time. */
async function readInTime(
  database: Database,
  target: ReadTarget,
  until: number,
): Promise<JobRecord | undefined> {
  for (;;) {
    try {
      return await readJobOn(database, target)
    } catch (error) {
      const leftMs = until - performance.now()
      if (!(error instanceof BusyError) || leftMs <= 0) throw error
      await sleep(Math.min(LAST_MS, leftMs))
    }
  }
}

/** The reason that the caller of `cancel` gave. A job that was lost after it was canceled has another error. */
const reasonOf = ({ error }: JobRecord): string | undefined =>
  error?.name === 'JobCanceledError' ? error.message || undefined : undefined

/** The error message of the last attempt. A snoozed attempt has not failed. */
const messageOf = ({ error }: JobRecord): string | undefined =>
  error?.name === 'SnoozeError' ? undefined : error?.message

/** Explains a timed-out wait. If the reason cannot be read, the caller still gets its `BusyError`, without the reason. */
async function whyNotOver(database: Database, job: JobRecord): Promise<string> {
  const { queue, name, version, state, attempt } = job
  const failure = state === 'scheduled' && messageOf(job)
  if (failure) return ` (attempt ${attempt} has failed: ${failure})`
  if (state !== 'ready') return ''
  const [row] = await database.send(readTakers, [queue, name, String(version)]).catch(() => [])
  if (row?.isPaused === 'true') return ' (its queue is paused)'
  return row?.isTaken === 'false' ? ' (no worker that is alive takes it)' : ''
}
