import { Coalescer } from '../postgres/coalescer.js'
import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import { JoinedCall } from '../postgres/joined-call.js'
import { statement } from '../postgres/statement.js'
import type { TextRow } from '../postgres/text-values.js'
import { toPayload, type Wakeups } from '../postgres/wakeups.js'
import type { AddManyOptions } from './add-options.js'
import { addJobs } from './job-statements.js'
import { topicsOf } from './job-topics.js'
import { addJobsValues, inBatches, MAX_BATCH, type NewJob } from './new-job.js'

/** Statements in flight at a time: while one commits, the next is gathered and sent. */
const MAX_IN_FLIGHT = 2

const notify = statement(`select pg_catalog.pg_notify($1::text, $2::text)::text as sent`)

/** Adds jobs, and notifies the workers of their queues. Every call returns the ids in the order of the jobs. */
export class JobAdder {
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #coalescer: Coalescer<NewJob, string>

  constructor(database: Database, wakeups: Wakeups) {
    this.#database = database
    this.#wakeups = wakeups
    this.#coalescer = new Coalescer((jobs) => this.#addBatch(jobs), {
      maxBatch: MAX_BATCH,
      maxInFlight: MAX_IN_FLIGHT,
      countFitting: (jobs) => inBatches(jobs).next().value?.length ?? 0,
      gathersTick: true,
    })
  }

  /** Adds one job. Concurrent calls share statements and commits. Resolves when the job is committed. */
  add(job: NewJob): Promise<string> {
    return this.#database.work(() => this.#coalescer.add('jobs', job))
  }

  /** Adds all jobs or none, in one commit. */
  async addAll(jobs: readonly NewJob[]): Promise<string[]> {
    const [first = [], ...others] = inBatches(jobs)
    if (others.length === 0) return await this.#addBatch(first)
    return await this.#database.transaction((tx) => this.addJoined(jobs, { tx }), {
      deadlineMs: Number.POSITIVE_INFINITY,
    })
  }

  /** Adds jobs in the transaction of the caller. */
  async addJoined(
    jobs: readonly NewJob[],
    { tx, wake }: AddManyOptions & { readonly tx: Tx },
  ): Promise<string[]> {
    const ids: string[] = []
    const batches = [...inBatches(jobs)]
    const marked = new JoinedCall(this.#database, tx, `jobs.addMany of ${jobs.length} jobs`)
    if (batches.length > 1) await marked.open()
    for (const batch of batches) ids.push(...readIds(await marked.next(addJobs, addJobsValues(batch))))
    await this.#notifyAfterCommit(jobs, tx, wake)
    await marked.close()
    return ids
  }

  /** Adds jobs that fit into one statement. The notification goes with the same message, after the commit. */
  async #addBatch(jobs: readonly NewJob[]): Promise<string[]> {
    const topics = topicsOf(jobs)
    const rows = await this.#database.send(addJobs, addJobsValues(jobs), {
      followUp: { statement: this.#wakeups.notifyStatement(topics), ifNotSent: () => this.#notify(topics) },
    })
    this.#wakeups.wakeLocal(topics)
    return readIds(rows)
  }

  /**
   * Notifies workers when the transaction commits, if it has a hook for that. Otherwise the notification becomes part of the transaction, if the caller wants
   * that, or workers find the jobs by polling.
   */
  async #notifyAfterCommit(jobs: readonly NewJob[], tx: Tx, wake: AddManyOptions['wake']): Promise<void> {
    const { afterCommit } = tx as { afterCommit?: unknown }
    if (typeof afterCommit === 'function') afterCommit.call(tx, () => this.#notify(topicsOf(jobs)))
    else if (wake)
      await this.#database.send(notify, [this.#wakeups.channel, toPayload(topicsOf(jobs))], { tx })
  }

  #notify(topics: Iterable<string>): void {
    for (const topic of topics) this.#wakeups.notify(topic)
  }
}

const readIds = ([row]: readonly TextRow[]): string[] => `${row?.ids}`.slice(1, -1).split(',')
