import { DibsError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import type { Statement } from '../postgres/statement.js'
import { type TextRow, type TextValue, textArray } from '../postgres/text-values.js'
import type { Wakeups } from '../postgres/wakeups.js'
import type { ReadAdd, ReadDefinition } from './job-spec.js'
import { addJobs } from './job-statements.js'

/** A job to be added. */
export interface NewJob {
  readonly definition: ReadDefinition
  readonly options: ReadAdd
  /** As JSON. */
  readonly input: string
}

/** How many go with one statement, and how many characters of input: past a few hundred, more make none of them faster. */
export const MOST = 1_000
const MOST_CHARS = 4_000_000

/** Whoever works on a queue listens on this topic. */
export const queueTopic = (queue: string): string => `jobs:${queue}`
/** The same for what is not due yet. */
export const DUE_TOPIC = 'jobs-due'

/** Parts of a list that each fit into one statement. */
export function* inBatches(jobs: readonly NewJob[]): Generator<readonly NewJob[]> {
  let from = 0
  let chars = 0
  for (let n = 0; n < jobs.length; n++) {
    const { length } = (jobs[n] as NewJob).input
    if (n > from && (n - from === MOST || chars + length > MOST_CHARS)) {
      yield jobs.slice(from, n)
      from = n
      chars = 0
    }
    chars += length
  }
  if (from < jobs.length) yield jobs.slice(from)
}

/** How a statement is sent: in a transaction, or alone. */
type Send = (statement: Statement, values: readonly TextValue[]) => Promise<TextRow[]>

/** Adds what fits into one statement. Answers the ids, in the same order. */
export async function sendJobs(send: Send, jobs: readonly NewJob[]): Promise<string[]> {
  const { kinds, places } = sortByKind(jobs)
  const texts = (value: (kind: NewJob) => string): string => textArray(kinds.map(value))
  const numbers = (value: (kind: NewJob) => number | undefined): string =>
    `{${kinds.map((kind) => value(kind) ?? 'null').join(',')}}`
  const correlations = jobs.map(({ options }) => options.correlationId)
  const values = [
    texts(({ definition }) => definition.queue),
    texts(({ definition }) => definition.name),
    numbers(({ definition }) => definition.version),
    numbers(({ options }) => options.priority),
    numbers(({ options }) => options.runAt),
    numbers(({ options }) => options.delayMs),
    numbers(({ options }) => options.expiresAt),
    numbers(({ definition }) => definition.maxAttempts),
    numbers(({ definition }) => definition.keepDays),
    `[${jobs.map(({ input }) => input).join(',')}]`,
    kinds.length === 1 ? '{}' : `{${places.join(',')}}`,
    correlations.every((id) => id === null) ? '{}' : textArray(correlations),
  ]
  const [row] = await send(addJobs, values)
  return `${row?.ids}`.slice(1, -1).split(',')
}

/** The same in a transaction of its own. Whoever waits for jobs is told in the same message, when that is committed. */
export async function addAlone(
  database: Database,
  wakeups: Wakeups,
  jobs: readonly NewJob[],
): Promise<string[]> {
  const topics = topicsOf(jobs)
  const ids = await sendJobs(
    (statement, values) =>
      database.sendThen(statement, values, wakeups.notifying(topics), () => hintJobs(wakeups, jobs)),
    jobs,
  )
  wakeups.wakeHere(topics)
  return ids
}

/** One of each kind, and for each job the place of its kind, counted from 1: the server is told once what many have in common. */
function sortByKind(jobs: readonly NewJob[]): { kinds: NewJob[]; places: number[] } {
  const kinds: NewJob[] = []
  const known = new Map<string, number>()
  let last: NewJob | undefined
  let place = 0
  const places = jobs.map((job) => {
    // Most often it is as the one before.
    if (last && isAlike(last, job)) return place
    last = job
    const key = keyOf(job)
    place = known.get(key) ?? kinds.push(job)
    known.set(key, place)
    return place
  })
  return { kinds, places }
}

const isAlike = (one: NewJob, other: NewJob): boolean =>
  one.definition === other.definition &&
  one.options.priority === other.options.priority &&
  one.options.runAt === other.options.runAt &&
  one.options.delayMs === other.options.delayMs &&
  one.options.expiresAt === other.options.expiresAt

function keyOf({ definition, options }: NewJob): string {
  const { queue, name, version, maxAttempts, keepDays } = definition
  const { priority, runAt, delayMs, expiresAt } = options
  return JSON.stringify([
    ...[queue, name, version, maxAttempts, keepDays],
    ...[priority, runAt, delayMs, expiresAt],
  ])
}

/** Tells those who wait for jobs that there are some. */
export function hintJobs(wakeups: Wakeups, jobs: readonly NewJob[]): void {
  for (const topic of topicsOf(jobs)) wakeups.hint(topic)
}

export function topicsOf(jobs: readonly NewJob[]): Set<string> {
  const topics = new Set<string>()
  let last: NewJob | undefined
  for (const job of jobs) {
    if (last && isAlike(last, job)) continue
    last = job
    const { definition, options } = job
    const isLater = options.runAt !== undefined || (options.delayMs ?? 0) > 0
    // By this process's clock, which may be wrong: then both.
    const isSoon = (options.runAt ?? 0) < Date.now() + 1_000 && (options.delayMs ?? 0) === 0
    if (isLater) topics.add(DUE_TOPIC)
    if (isSoon) topics.add(queueTopic(definition.queue))
  }
  return topics
}

/** The server says that it has done nothing. */
export const wasRefused = (error: unknown): boolean =>
  error instanceof DibsError &&
  ['DIBS_DATABASE', 'DIBS_CONSTRAINT_VIOLATION', 'DIBS_STATEMENT_TIMEOUT', 'DIBS_CONFLICT'].includes(
    error.code,
  )
