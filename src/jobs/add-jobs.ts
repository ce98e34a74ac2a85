import { DibsError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import { textArray } from '../postgres/text-values.js'
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
const MOST = 1_000
const MOST_CHARS = 4_000_000

/** Whoever works on a queue listens on this topic. */
export const queueTopic = (queue: string): string => `jobs:${queue}`
/** The same for what is not due yet. */
export const DUE_TOPIC = 'jobs-due'

/** Parts of a list that each fit into one statement. */
export function* inBatches(jobs: readonly NewJob[]): Generator<readonly NewJob[]> {
  let from = 0
  let chars = 0
  for (const [n, { input }] of jobs.entries()) {
    if (n > from && (n - from === MOST || chars + input.length > MOST_CHARS)) {
      yield jobs.slice(from, n)
      from = n
      chars = 0
    }
    chars += input.length
  }
  if (from < jobs.length) yield jobs.slice(from)
}

/** Adds what fits into one statement. Answers the ids, in the same order. */
export async function sendJobs(database: Database, jobs: readonly NewJob[], tx?: Tx): Promise<string[]> {
  const kinds = new Map<string, number>()
  const places = jobs.map((job) => {
    const kind = kindOf(job)
    const place = kinds.get(kind) ?? kinds.size + 1
    kinds.set(kind, place)
    return place
  })
  const correlations = jobs.map(({ options }) => options.correlationId)
  const values = [
    `[${[...kinds.keys()].join(',')}]`,
    `[${jobs.map(({ input }) => input).join(',')}]`,
    kinds.size === 1 ? '{}' : `{${places.join(',')}}`,
    correlations.every((id) => id === null) ? '{}' : textArray(correlations),
  ]
  const [row] = await database.send(addJobs, values, tx)
  return `${row?.ids}`.slice(1, -1).split(',')
}

/** What `job_add` is told of all jobs that are alike. The last is at hand for the next, which is most often the same. */
const kinds = new WeakMap<ReadDefinition, { options: ReadAdd; kind: string }>()

function kindOf({ definition, options }: NewJob): string {
  const last = kinds.get(definition)
  if (last && isAlike(last.options, options)) return last.kind
  const { queue, name, version, maxAttempts, keepDays } = definition
  const { priority, runAt, delayMs, expiresAt } = options
  const kind = JSON.stringify({
    ...{ queue, name, version, maxAttempts, keepDays },
    ...{ priority, runAt, delayMs, expiresAt },
  })
  kinds.set(definition, { options, kind })
  return kind
}

const isAlike = (one: ReadAdd, other: ReadAdd): boolean =>
  one.priority === other.priority &&
  one.runAt === other.runAt &&
  one.delayMs === other.delayMs &&
  one.expiresAt === other.expiresAt

/** Tells those who wait for jobs that there are some. */
export function hintJobs(wakeups: Wakeups, jobs: readonly NewJob[]): void {
  for (const topic of topicsOf(jobs)) wakeups.hint(topic)
}

export function topicsOf(jobs: readonly NewJob[]): Set<string> {
  const topics = new Set<string>()
  for (const { definition, options } of jobs) {
    const isLater = options.runAt !== undefined || (options.delayMs ?? 0) > 0
    // By this process's clock, which may be wrong: then both.
    const isSoon = (options.runAt ?? 0) < Date.now() + 1_000 && (options.delayMs ?? 0) === 0
    if (isLater) topics.add(DUE_TOPIC)
    if (isSoon) topics.add(queueTopic(definition.queue))
  }
  return topics
}

interface Waiting {
  readonly job: NewJob
  readonly resolve: (id: string) => void
  readonly reject: (error: unknown) => void
}

/** Statements on their way at a time: while one commits, the next is gathered, and one more is sent. */
const MOST_SENT = 2

/**
 * Jobs that are added one at a time share statements, and commits. Nobody waits to be collected: what is asked for in one turn of the event loop goes at once, and what comes while
 * that is on its way goes next. Each call resolves when its job is committed.
 */
export class JobAdder {
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #waiting: Waiting[] = []
  #sent = 0
  #isDue = false

  constructor(database: Database, wakeups: Wakeups) {
    this.#database = database
    this.#wakeups = wakeups
  }

  add(job: NewJob): Promise<string> {
    return this.#database.work(
      () =>
        new Promise((resolve, reject) => {
          this.#waiting.push({ job, resolve, reject })
          this.#start()
        }),
    )
  }

  #start(): void {
    if (this.#isDue || this.#sent >= MOST_SENT || this.#waiting.length === 0) return
    this.#isDue = true
    setImmediate(() => {
      this.#isDue = false
      void this.#send(this.#next())
      this.#start()
    })
  }

  #next(): Waiting[] {
    const [first] = inBatches(this.#waiting.slice(0, MOST).map(({ job }) => job))
    return this.#waiting.splice(0, first?.length ?? 0)
  }

  async #send(batch: readonly Waiting[]): Promise<void> {
    if (batch.length === 0) return
    this.#sent++
    try {
      tell(batch, await sendJobs(this.#database, jobsOf(batch)))
      hintJobs(this.#wakeups, jobsOf(batch))
    } catch (error) {
      if (batch.length === 1 || !wasRefused(error)) for (const { reject } of batch) reject(error)
      // One of them may be to blame: each by itself.
      else for (const one of batch) await this.#sendOne(one)
    }
    this.#sent--
    this.#start()
  }

  async #sendOne(one: Waiting): Promise<void> {
    try {
      tell([one], await sendJobs(this.#database, [one.job]))
      hintJobs(this.#wakeups, [one.job])
    } catch (error) {
      one.reject(error)
    }
  }
}

const jobsOf = (batch: readonly Waiting[]): NewJob[] => batch.map(({ job }) => job)

function tell(batch: readonly Waiting[], ids: readonly string[]): void {
  for (const [n, { resolve }] of batch.entries()) resolve(`${ids[n]}`)
}

/** The server says that it has done nothing. */
export const wasRefused = (error: unknown): boolean =>
  error instanceof DibsError &&
  ['DIBS_DATABASE', 'DIBS_CONSTRAINT_VIOLATION', 'DIBS_STATEMENT_TIMEOUT', 'DIBS_CONFLICT'].includes(
    error.code,
  )
