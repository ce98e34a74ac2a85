import { CircuitBreaker } from '../postgres/circuit-breaker.js'
import type { Database } from '../postgres/database.js'
import { DedicatedConnection } from '../postgres/dedicated-connection.js'
import { type EventOrigin, emit } from '../postgres/events.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { Completer } from './completer.js'
import type { EngineContext } from './engine-context.js'
import { Fetcher } from './fetcher.js'
import { Heartbeat } from './heartbeat.js'
import { JobMaintenance } from './job-maintenance.js'
import { CANCEL_TOPIC, queueTopic } from './job-topics.js'
import type { Lane } from './lane-claimer.js'
import { LaneCursors } from './lane-cursors.js'

/** Five failed claims in a row stop the claims for half a minute. Then three claims at a time may try. */
export const workerBreaker = { maxFailures: 5, openMs: 30_000, maxProbes: 3 }

/**
 * The parts that all workers of an instance share. A job passes through these parts:
 *
 * 1. `Jobs` checks the options (`add-options.ts`), and `JobAdder` adds the job to the lane of its queue, name and version.
 * 2. `Fetcher` claims jobs for all workers that run the same lanes (`lane-claimer.ts`, `scan-pacing.ts`, `background-scan.ts`).
 * 3. `RunningWorker` gives each job a slot (`worker-slots.ts`) and runs its handler (`run-attempt.ts`). `Attempt` has the states of the claim.
 * 4. `Heartbeat` renews the leases of all jobs that this process has claimed.
 * 5. `AttemptOutcomes` decides how an attempt ends (`settlement.ts`), and `Completer` records that.
 * 6. `JobMaintenance` serves the jobs of all processes: it promotes jobs that are due, recovers and expires jobs, and keeps the history.
 */
export class Engine implements EngineContext {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly origin: EventOrigin
  readonly claims: DedicatedConnection
  readonly outcomes: DedicatedConnection
  readonly maintenance: DedicatedConnection
  readonly scans: DedicatedConnection
  readonly cursors = new LaneCursors()
  readonly breaker = new CircuitBreaker(workerBreaker)
  readonly heartbeat = new Heartbeat(this)
  readonly completer = new Completer(this)
  readonly #jobMaintenance = new JobMaintenance(this)
  readonly #fetchers = new Map<string, Fetcher>()
  #workers = 0
  #unsubscribe: (() => void) | undefined
  isClosed = false

  constructor(database: Database, wakeups: Wakeups) {
    this.database = database
    this.wakeups = wakeups
    this.origin = database.origin
    const options = { prepared: database.prepared, finishesStatements: true }
    this.claims = new DedicatedConnection(database, options)
    this.outcomes = new DedicatedConnection(database, options)
    this.maintenance = new DedicatedConnection(database, options)
    this.scans = new DedicatedConnection(database, options)
  }

  /** Counts a worker that starts. Its jobs are kept for these numbers of days. */
  enter(keepDays: Iterable<number>): void {
    for (const connection of [this.claims, this.outcomes, this.maintenance]) connection.retain()
    this.#jobMaintenance.keepDays(keepDays)
    if (this.#workers++ > 0) return
    this.#jobMaintenance.start()
    this.#unsubscribe = this.wakeups.subscribe(CANCEL_TOPIC, () => this.heartbeat.renewNow())
  }

  /** Counts out a worker that has stopped. */
  leave(): void {
    if (--this.#workers === 0) {
      this.#jobMaintenance.stop()
      this.#unsubscribe?.()
    }
    for (const connection of [this.claims, this.outcomes, this.maintenance]) connection.release()
  }

  /** Workers with the same lanes share a fetcher. */
  fetcher(lanes: readonly Lane[]): Fetcher {
    const key = lanes.map(({ id, leaseMs }) => `${id}:${leaseMs}`).join()
    const fetcher = this.#fetchers.get(key) ?? new Fetcher(this, lanes)
    this.#fetchers.set(key, fetcher)
    return fetcher
  }

  onAnswer(): void {
    if (!this.breaker.succeed()) return
    emit('dibs:worker.breaker-closed', this.origin)
    // The fetchers wait until the breaker would have let them try.
    for (const fetcher of this.#fetchers.values()) fetcher.wake()
  }

  /** Plans a promotion for a job that is due in `delayMs`: the next run of the maintenance might be too late. */
  onScheduled(delayMs: number): void {
    this.#jobMaintenance.promoteIn(delayMs)
  }

  notifyQueues(queues: Iterable<string>): void {
    for (const queue of queues) this.wakeups.notify(queueTopic(queue))
  }

  close(): void {
    this.isClosed = true
    this.#jobMaintenance.stop()
  }
}
