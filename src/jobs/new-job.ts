import { type TextValue, textArray } from '../postgres/text-values.js'
import type { ResolvedAddOptions } from './add-options.js'
import type { ResolvedDefinition } from './job-definition.js'

/** A job to be added. */
export interface NewJob {
  readonly definition: ResolvedDefinition
  readonly options: ResolvedAddOptions
  /** As JSON. */
  readonly input: string
}

/** The most jobs in one statement, and the most characters of their inputs. Beyond a few hundred jobs, larger statements are not faster. */
export const MAX_BATCH = 1_000
const MAX_BATCH_CHARS = 4_000_000

/** Splits a list into parts that each fit into one statement. */
export function* inBatches(jobs: readonly NewJob[]): Generator<readonly NewJob[]> {
  let from = 0
  let chars = 0
  for (let n = 0; n < jobs.length; n++) {
    const { length } = (jobs[n] as NewJob).input
    if (n > from && (n - from === MAX_BATCH || chars + length > MAX_BATCH_CHARS)) {
      yield jobs.slice(from, n)
      from = n
      chars = 0
    }
    chars += length
  }
  if (from < jobs.length) yield jobs.slice(from)
}

/** The values of the statement `addJobs`. */
export function addJobsValues(jobs: readonly NewJob[]): TextValue[] {
  const { kinds, places } = sortByKind(jobs)
  const texts = (value: (kind: NewJob) => string): string => textArray(kinds.map(value))
  const numbers = (value: (kind: NewJob) => number | undefined): string =>
    `{${kinds.map((kind) => value(kind) ?? 'null').join(',')}}`
  const correlations = jobs.map(({ options }) => options.correlationId)
  return [
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
}

/** Jobs that differ only in their input are one kind, whose values are sent once. Returns one job of each kind, and for each job the number of its kind, from 1. */
function sortByKind(jobs: readonly NewJob[]): { kinds: NewJob[]; places: number[] } {
  const kinds: NewJob[] = []
  const known = new Map<string, number>()
  let last: NewJob | undefined
  let place = 0
  const places = jobs.map((job) => {
    // Most jobs are of the same kind as the job before.
    if (last && isSameKind(last, job)) return place
    last = job
    const key = keyOf(job)
    place = known.get(key) ?? kinds.push(job)
    known.set(key, place)
    return place
  })
  return { kinds, places }
}

export const isSameKind = (one: NewJob, other: NewJob): boolean =>
  one.definition === other.definition &&
  one.options.priority === other.options.priority &&
  one.options.runAt === other.options.runAt &&
  one.options.delayMs === other.options.delayMs &&
  one.options.expiresAt === other.options.expiresAt

function keyOf({ definition, options }: NewJob): string {
  const { queue, name, version, maxAttempts, keepDays } = definition
  const { priority, runAt, delayMs, expiresAt } = options
  return JSON.stringify([queue, name, version, maxAttempts, keepDays, priority, runAt, delayMs, expiresAt])
}
