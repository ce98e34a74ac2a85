import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import { toJson } from '../postgres/json.js'
import { MarkedCall } from '../postgres/marked-call.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import { parseInput } from '../postgres/standard-schema.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { addAlone, inBatches, type NewJob, sendJobs } from './add-jobs.js'
import { type Canceled, type CancelOptions, cancelOn } from './cancel-job.js'
import { type DeadChoice, DeadJobs, type DeadPage, type ListDeadOptions } from './dead-jobs.js'
import { type Handled, type JobHandlers, readHandlers } from './handlers.js'
import { hintAfterCommit } from './hint-after-commit.js'
import type { JobAdder } from './job-adder.js'
import type { AttemptRecord, JobRecord } from './job-record.js'
import { awaitResult, type ResultOptions, readHistoryOn, readJobOn } from './job-results.js'
import {
  type AddOptions,
  type JobDefinitions,
  type JobGiven,
  type JobOutcome,
  type ReadDefinition,
  readAdd,
  readDefinition,
} from './job-spec.js'
import type { Worker, WorkOptions } from './work-options.js'

export interface AddJobOptions extends AddOptions {
  /** Your transaction: the job is there if, and only if, that commits. */
  readonly tx?: Tx | undefined
  /**
   * In a transaction of another library workers know of the job by polling, since nobody tells when that commits. `in-transaction` tells them from inside: at once, at the price
   * that all such commits in the database queue for one lock.
   */
  readonly wake?: 'in-transaction' | undefined
}

export interface AddManyOptions {
  readonly tx?: Tx | undefined
  readonly wake?: 'in-transaction' | undefined
}

/** One of several jobs that are added together. */
export type JobToAdd<D extends JobDefinitions> = {
  readonly [N in keyof D & string]: AddOptions & { readonly name: N; readonly input: JobGiven<D[N]> }
}[keyof D & string]

/** A job that was added. */
export interface AddedJob {
  readonly id: string
  /** False if there was one already that stands for it. */
  readonly added: boolean
}

/** What jobs need of the instance that they belong to. */
export interface JobsParts {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly adder: JobAdder
  readonly work: (handled: readonly Handled[], options?: WorkOptions) => Promise<Worker>
}

const addNames = ['runAt', 'delayMs', 'priority', 'expiresAt', 'correlationId']

const addedOf = (ids: readonly string[]): AddedJob[] => ids.map((id) => ({ id, added: true }))

function checkWake(wake: unknown): void {
  if (wake !== undefined && wake !== 'in-transaction')
    throw new InvalidInputError('wake', `must be 'in-transaction', or absent, not ${showGiven(wake)}`)
}

/** Jobs by name: what each takes, how it is tried again, and what becomes of it. */
export class Jobs<D extends JobDefinitions> {
  readonly #parts: JobsParts
  readonly #definitions: ReadonlyMap<string, ReadDefinition>
  readonly #dead: DeadJobs

  constructor(parts: JobsParts, definitions: D) {
    if (typeof definitions !== 'object' || definitions === null || Array.isArray(definitions))
      throw new InvalidInputError(
        'definitions',
        `must be an object of jobs by name, not ${nameGiven(definitions)}`,
      )
    this.#parts = parts
    this.#definitions = new Map(
      Object.entries(definitions).map(([name, definition]) => [name, readDefinition(name, definition)]),
    )
    this.#dead = new DeadJobs(parts, [...this.#definitions.values()])
  }

  /**
   * Adds a job. In your transaction (`tx`) it is there if that commits; else it is committed when this resolves, and those that are added at the same time share a statement.
   *
   * @example
   * const { id } = await jobs.add('email', { to: 'ann@example.org' }, { delayMs: 60_000, priority: 5 })
   *
   * await dibs.transaction(async (tx) => {
   *   await tx.query('insert into users (email) values ($1)', ['ann@example.org'])
   *   await jobs.add('email', { to: 'ann@example.org' }, { tx })
   * })
   */
  async add<N extends keyof D & string>(
    name: N,
    input: JobGiven<D[N]>,
    options: AddJobOptions = {},
  ): Promise<AddedJob> {
    checkOptions(options, [...addNames, 'tx', 'wake'])
    const { tx, wake, ...rest } = options
    checkWake(wake)
    const job = await this.#read(name, input, rest)
    if (tx === undefined) return { id: await this.#parts.adder.add(job), added: true }
    const [added] = await this.#addJoined([job], tx, wake)
    return added as AddedJob
  }

  /**
   * Adds any number of jobs, all or none. Answers them in their order.
   *
   * @example
   * await jobs.addMany(users.map(({ email }) => ({ name: 'email', input: { to: email }, priority: -1 })))
   */
  async addMany(jobs: readonly JobToAdd<D>[], options: AddManyOptions = {}): Promise<AddedJob[]> {
    if (!Array.isArray(jobs))
      throw new InvalidInputError('jobs', `must be an array of { name, input, … }, not ${nameGiven(jobs)}`)
    checkOptions(options, ['tx', 'wake'])
    checkWake(options.wake)
    const read: NewJob[] = []
    for (const [n, job] of (jobs as readonly JobToAdd<D>[]).entries()) read.push(await this.#readOne(job, n))
    if (read.length === 0) return []
    const { database, wakeups } = this.#parts
    if (options.tx !== undefined) return await this.#addJoined(read, options.tx, options.wake)
    const [first = [], ...others] = inBatches(read)
    if (others.length === 0) return addedOf(await addAlone(database, wakeups, first))
    return await database.transaction((tx) => this.#addJoined(read, tx, undefined), {
      deadlineMs: Number.POSITIVE_INFINITY,
    })
  }

  async #addJoined(jobs: readonly NewJob[], tx: Tx, wake: 'in-transaction' | undefined): Promise<AddedJob[]> {
    const { database, wakeups } = this.#parts
    const ids: string[] = []
    const batches = [...inBatches(jobs)]
    const marked = new MarkedCall(database, tx, `jobs.addMany of ${jobs.length} jobs`)
    if (batches.length > 1) await marked.open()
    for (const batch of batches)
      ids.push(...(await sendJobs((statement, values) => marked.next(statement, values), batch)))
    await hintAfterCommit(database, wakeups, jobs, tx, wake)
    await marked.close()
    return addedOf(ids)
  }

  async #readOne(job: JobToAdd<D>, n: number): Promise<NewJob> {
    if (typeof job !== 'object' || job === null || Array.isArray(job))
      throw new InvalidInputError(
        `jobs[${n}]`,
        `must be an object { name, input, … }, not ${nameGiven(job)}; none was added`,
      )
    try {
      checkOptions(job, ['name', 'input', ...addNames])
      const { name, input, ...rest } = job
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

  async #read(name: string, input: unknown, options: AddOptions): Promise<NewJob> {
    const definition = this.#definition(name)
    const read = readAdd(options)
    const text = toJson('input', input === undefined ? null : input)
    // As a handler will see it. What the schema makes of it is made again then.
    if (definition.input) await parseInput(definition.input, JSON.parse(text))
    return { definition, options: read, input: text }
  }

  #definition(name: string): ReadDefinition {
    const definition = this.#definitions.get(name)
    if (definition) return definition
    throw new InvalidInputError(
      'name',
      `is of no job that is defined here: ${showGiven(name)}; there are ${[...this.#definitions.keys()].join(', ')}`,
    )
  }

  /**
   * Names what runs these jobs, for `dibs.work`. Starts nothing.
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
   * Runs these jobs in this process, until it is stopped.
   *
   * @example
   * await using worker = await jobs.work({ email: async (input) => mailer.send(input.to) }, { concurrency: 20 })
   */
  work(handlers: JobHandlers<D>, options?: WorkOptions): Promise<Worker> {
    return this.#parts.work([this.handle(handlers)], options)
  }

  /**
   * A job as it is, or as it ended; undefined if there is none, or if it is not kept any more.
   *
   * @example
   * const job = await jobs.get(id)
   * console.log(job?.state, job?.progress)
   */
  get(id: string): Promise<JobRecord | undefined> {
    return readJobOn(this.#parts.database, id)
  }

  /**
   * What came of a job, as its handler returned it. If the job is dead, throws a `PermanentError`, or the `BusinessRuleError` that it was, with the message of what the handler threw; `JobCanceledError`, `JobExpiredError`; `BusyError` if it is not over
   * within `waitMs` (0); `NotFoundError` if nobody knows of it, any more or at all.
   *
   * @example
   * const { messageId } = await jobs.result<'email'>(id, { waitMs: 10_000 })
   */
  async result<N extends keyof D & string = keyof D & string>(
    id: string,
    options: ResultOptions = {},
  ): Promise<JobOutcome<D[N]>> {
    return (await awaitResult(this.#parts.database, id, options, this.#definitions)) as JobOutcome<D[N]>
  }

  /**
   * The attempts of a job that have ended, in their order, as far as they are kept.
   *
   * @example
   * for (const { attempt, outcome, error } of await jobs.history(id)) console.log(attempt, outcome, error?.message)
   */
  history(id: string): Promise<AttemptRecord[]> {
    return readHistoryOn(this.#parts.database, id)
  }

  /**
   * Gives a job up. One that waits is over at once (`canceled`); one that runs is told by its `signal`, wherever it runs (`canceling`): it
   * still succeeds if it is done within five seconds of that; then it is over, whatever its handler does.
   *
   * @example
   * const { state } = await jobs.cancel(id, { reason: 'the order was withdrawn' })
   */
  cancel(id: string, options: CancelOptions = {}): Promise<Canceled> {
    return cancelOn(this.#parts, id, options)
  }

  /**
   * Jobs that have failed for good, a page at a time.
   *
   * @example
   * const { jobs: letters, next } = await jobs.dead({ name: 'email', limit: 50 })
   */
  dead(options: ListDeadOptions = {}): Promise<DeadPage> {
    return this.#dead.list(options)
  }

  /**
   * Makes dead jobs ready again, with all their attempts: one, several, all that match, or all. Answers their ids; what was not dead is left out.
   *
   * @example
   * await jobs.redrive(id)
   * const { ids } = await jobs.redrive({ name: 'email', error: 'ECONNREFUSED' })
   * await jobs.redrive({ all: true })
   */
  redrive(which: string | readonly string[] | DeadChoice): Promise<{ readonly ids: readonly string[] }> {
    return this.#dead.redrive(which)
  }

  /**
   * Removes dead jobs: one, several, all that match, or all. Their attempts stay in history, and their input with the last one.
   *
   * @example
   * await jobs.discard({ name: 'email' })
   */
  discard(which: string | readonly string[] | DeadChoice): Promise<{ readonly ids: readonly string[] }> {
    return this.#dead.discard(which)
  }
}

trackJoinedMethods(Jobs, 'jobs', { add: 2, addMany: 1 })
