import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import type { Database } from '../postgres/database.js'
import { type Storable, toJson } from '../postgres/json.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import type { Page, PageOptions } from '../postgres/page.js'
import { parseInput } from '../postgres/standard-schema.js'
import type { Wakeups } from '../postgres/wakeups.js'
import {
  type AddJobOptions,
  type AddManyOptions,
  type AddOptions,
  addJobOptions,
  addManyOptions,
  jobToAdd,
  resolveAddOptions,
} from './add-options.js'
import { type Canceled, type CancelOptions, cancelOn } from './cancel-job.js'
import { type DeadChoice, type DeadFilter, DeadJobs } from './dead-jobs.js'
import { type Handled, type JobHandlers, readHandlers } from './handlers.js'
import type { JobAdder } from './job-adder.js'
import {
  type JobAddInput,
  type JobDefinitions,
  type JobOutcome,
  type JobPayload,
  type ResolvedDefinition,
  resolveDefinition,
} from './job-definition.js'
import type { AttemptRecord, JobRecord } from './job-record.js'
import {
  type JobRef,
  type JobRefOf,
  type JobTarget,
  type ResolvedTarget,
  resolveTarget,
  unknownName,
} from './job-ref.js'
import { awaitResult, type ResultOptions, readHistoryOn, readJobOn } from './job-results.js'
import type { NewJob } from './new-job.js'
import type { Worker, WorkOptions } from './work-options.js'

/** One job of an `addMany` call. */
export type JobToAdd<D extends JobDefinitions> = {
  readonly [N in keyof D & string]: AddOptions & {
    readonly name: N
    readonly input: Storable<JobAddInput<D[N]>>
  }
}[keyof D & string]

/** The parts of a Dibs instance that its jobs use. */
export interface JobsParts {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly adder: JobAdder
  readonly work: (handled: readonly Handled[], options?: WorkOptions) => Promise<Worker>
}

/** Returns references to added jobs, in the order of the jobs. */
const refsTo = <R>(jobs: readonly NewJob[], ids: readonly string[]): R[] =>
  // The caller's types give the names.
  jobs.map(({ definition }, n) => ({ id: ids[n], name: definition.name, created: true }) as R)

/** Jobs by name: adds, runs, reads, cancels and redrives them. `dibs.jobs` returns it. */
export class Jobs<D extends JobDefinitions> {
  readonly #parts: JobsParts
  readonly #definitions: ReadonlyMap<string, ResolvedDefinition>
  readonly #dead: DeadJobs

  constructor(parts: JobsParts, definitions: D) {
    if (typeof definitions !== 'object' || definitions === null || Array.isArray(definitions))
      throw new InvalidInputError(
        'definitions',
        `must be an object of jobs by name, not ${nameGiven(definitions)}`,
      )
    this.#parts = parts
    this.#definitions = new Map(
      Object.entries(definitions).map(([name, definition]) => [name, resolveDefinition(name, definition)]),
    )
    this.#dead = new DeadJobs(parts, this.#definitions)
  }

  /**
   * Adds a job and returns a reference to it. With your transaction (`tx`), the job exists if that transaction commits. Without `tx`, the job is committed
   * when `add` resolves, and concurrent calls share a statement.
   *
   * @example
   * const ref = await jobs.add('email', { to: 'ann@example.org' }, { priority: 5 })
   * const { messageId } = await jobs.result(ref, { waitMs: 10_000 })
   *
   * await dibs.transaction(async (tx) => {
   *   await tx.query('insert into users (email) values ($1)', ['ann@example.org'])
   *   await jobs.add('email', { to: 'ann@example.org' }, { tx })
   * })
   */
  async add<N extends keyof D & string, Value = unknown>(
    name: N,
    input: JobPayload<D[N], Value>,
    options: AddJobOptions = {},
  ): Promise<JobRefOf<D, N>> {
    const { tx, wake, ...rest } = addJobOptions.read(options)
    const job = await this.#read(name, input, rest)
    const { adder } = this.#parts
    const ids = tx === undefined ? [await adder.add(job)] : await adder.addJoined([job], { tx, wake })
    return refsTo<JobRefOf<D, N>>([job], ids)[0] as JobRefOf<D, N>
  }

  /**
   * Adds any number of jobs, all or none. Returns a reference to each, in the same order.
   *
   * @example
   * await jobs.addMany(users.map(({ email }) => ({ name: 'email', input: { to: email }, priority: -1 })))
   */
  async addMany<N extends keyof D & string>(
    jobs: readonly (JobToAdd<D> & { readonly name: N })[],
    options: AddManyOptions = {},
  ): Promise<JobRefOf<D, N>[]> {
    if (!Array.isArray(jobs))
      throw new InvalidInputError('jobs', `must be an array of { name, input, … }, not ${nameGiven(jobs)}`)
    const { tx, wake } = addManyOptions.read(options)
    const read: NewJob[] = []
    for (const [n, job] of (jobs as readonly JobToAdd<D>[]).entries()) read.push(await this.#readOne(job, n))
    if (read.length === 0) return []
    const { adder } = this.#parts
    return refsTo(read, await (tx === undefined ? adder.addAll(read) : adder.addJoined(read, { tx, wake })))
  }

  async #readOne(job: JobToAdd<D>, n: number): Promise<NewJob> {
    if (typeof job !== 'object' || job === null || Array.isArray(job))
      throw new InvalidInputError(
        `jobs[${n}]`,
        `must be an object { name, input, … }, not ${nameGiven(job)}; none was added`,
      )
    try {
      const { name, input, ...rest } = jobToAdd.read(job)
      return await this.#read(name, input, rest)
    } catch (error) {
      if (!(error instanceof InvalidInputError)) throw error
      throw new InvalidInputError(
        `jobs[${n}]`,
        `is not right, and none was added: ${error.message.replace(/\.$/, '')}`,
        { cause: error, status: error.status },
      )
    }
  }

  async #read(
    name: string,
    input: unknown,
    options: AddOptions & { readonly priority: number },
  ): Promise<NewJob> {
    const definition = this.#definitions.get(name)
    if (!definition) throw unknownName(name, this.#definitions.keys())
    const read = resolveAddOptions(options)
    const text = toJson('input', input === undefined ? null : input)
    // Check the input in the form that a handler will get. The worker parses the stored input again, so the parsed value is not needed here.
    if (definition.input) await parseInput(definition.input, JSON.parse(text))
    return { definition, options: read, input: text }
  }

  #target(target: unknown): ResolvedTarget {
    return resolveTarget(target, this.#definitions)
  }

  /**
   * Names the handlers of these jobs, for `dibs.work`. `handle` starts nothing.
   *
   * @example
   * const worker = await dibs.work([jobs.handle({ email: async (input, ctx) => mailer.send(input.to, ctx.signal) })])
   */
  handle(handlers: JobHandlers<D>): Handled {
    return readHandlers(
      this.#parts.database.schema,
      this.#definitions,
      handlers as Readonly<Record<string, unknown>>,
    )
  }

  /**
   * Runs these jobs in this process, until the worker is stopped. Short for `dibs.work([jobs.handle(handlers)], options)`.
   *
   * @example
   * await using worker = await jobs.work({ email: async (input) => mailer.send(input.to) }, { concurrency: 20 })
   */
  work(handlers: JobHandlers<D>, options?: WorkOptions): Promise<Worker> {
    return this.#parts.work([this.handle(handlers)], options)
  }

  /**
   * Reads the current record of a job, or its last record if the job has ended. Returns undefined if the job does not exist or is no longer kept.
   *
   * @example
   * const ref = await jobs.add('email', { to: 'ann@example.org' })
   * const record = await jobs.get(ref)
   * console.log(record?.state, record?.progress)
   */
  async get<N extends keyof D & string>(job: JobTarget<D, N>): Promise<JobRecord | undefined> {
    return await readJobOn(this.#parts.database, this.#target(job))
  }

  /**
   * Returns the result of a job, typed by its reference. With an id, the type is that of any job defined here.
   *
   * Throws `BusyError` if the job has not ended within `waitMs` (default 0). Throws `NotFoundError` if the job does not exist or is no longer kept. For a
   * dead job, `result` throws a `PermanentError` with the message that the handler threw, or the handler's `BusinessRuleError`. Also throws
   * `JobCanceledError` and `JobExpiredError`.
   *
   * @example
   * const ref = await jobs.add('email', { to: 'ann@example.org' })
   * const { messageId } = await jobs.result(ref, { waitMs: 10_000 })
   */
  result<N extends keyof D & string>(
    job: JobRef<N, JobOutcome<D[N]>>,
    options?: ResultOptions,
  ): Promise<JobOutcome<D[N]>>
  result(job: string | JobRefOf<D>, options?: ResultOptions): Promise<JobOutcome<D[keyof D & string]>>
  async result(job: unknown, options: ResultOptions = {}): Promise<unknown> {
    return await awaitResult(this.#parts.database, this.#target(job), options, this.#definitions)
  }

  /**
   * Lists the attempts of a job that have ended and are still kept, oldest first, a page at a time.
   *
   * @example
   * const ref = await jobs.add('email', { to: 'ann@example.org' })
   * const { items } = await jobs.history(ref)
   * for (const { attempt, outcome, error } of items) console.log(attempt, outcome, error?.message)
   */
  async history<N extends keyof D & string>(
    job: JobTarget<D, N>,
    page: PageOptions = {},
  ): Promise<Page<AttemptRecord>> {
    return await readHistoryOn(this.#parts.database, this.#target(job), page)
  }

  /**
   * Cancels a job. A waiting job ends at once (`canceled`). For a running job, `ctx.signal` fires in the process that runs it (`canceling`). The job still
   * succeeds if its handler returns within five seconds. After that the job ends, whatever its handler does.
   *
   * @example
   * const ref = await jobs.add('email', { to: 'ann@example.org' }, { delayMs: 60_000 })
   * const { state } = await jobs.cancel(ref, { reason: 'the order was withdrawn' })
   */
  async cancel<N extends keyof D & string>(
    job: JobTarget<D, N>,
    options: CancelOptions = {},
  ): Promise<Canceled> {
    return await cancelOn(this.#parts, this.#target(job), options)
  }

  /**
   * Lists jobs that have failed for good, a page at a time.
   *
   * @example
   * const { items, nextCursor } = await jobs.dead({ name: 'email' }, { limit: 50 })
   * for (const { id, error } of items) console.log(id, error?.message)
   * if (nextCursor !== undefined) await jobs.dead({ name: 'email' }, { limit: 50, cursor: nextCursor })
   */
  dead(filter: DeadFilter = {}, page: PageOptions = {}): Promise<Page<JobRecord>> {
    return this.#dead.list(filter, page)
  }

  /**
   * Makes dead jobs ready again, with their full number of attempts: one, several, all that match, or all. Returns their ids, without the jobs that were not
   * dead.
   *
   * @example
   * const ref = await jobs.add('email', { to: 'ann@example.org' })
   * await jobs.redrive(ref)
   * const { ids } = await jobs.redrive({ name: 'email', error: 'ECONNREFUSED' })
   * await jobs.redrive({ all: true })
   */
  redrive<N extends keyof D & string>(
    which: JobTarget<D, N> | readonly JobTarget<D, N>[] | DeadChoice,
  ): Promise<{ readonly ids: readonly string[] }> {
    return this.#dead.redrive(which)
  }

  /**
   * Removes dead jobs: one, several, all that match, or all. Their attempts stay in the history, and the last attempt keeps the input.
   *
   * @example
   * await jobs.discard({ name: 'email' })
   */
  discard<N extends keyof D & string>(
    which: JobTarget<D, N> | readonly JobTarget<D, N>[] | DeadChoice,
  ): Promise<{ readonly ids: readonly string[] }> {
    return this.#dead.discard(which)
  }
}

trackJoinedMethods(Jobs, 'jobs', { add: 2, addMany: 1 })
