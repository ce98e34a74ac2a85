import type { LossReason } from '../errors.js'
import { Lease } from '../leases/lease.js'
import { LeaseRenewer, type Renewal, type RenewalState } from '../leases/lease-renewer.js'
import { emit } from '../postgres/events.js'
import { textArray } from '../postgres/text-values.js'
import { Attempt } from './attempt.js'
import type { EngineContext } from './engine-context.js'
import { HeartbeatThread, type ThreadReport } from './heartbeat-thread.js'
import { renewLeases } from './job-statements.js'

/** The most leases in one statement. */
const MAX_BATCH = 1_000
/** A worker counts as alive for this time after a heartbeat. The next heartbeat follows after a third of it, even without jobs. */
const WORKER_MS = 30_000
/** The most ended claims that are remembered. Recovery finds the others when their leases would have ended. */
const MAX_ENDED_CLAIMS = 10_000

interface HeartbeatResult {
  readonly lost: readonly number[]
  readonly locked: readonly number[]
  /** The reasons of canceled jobs, by id. */
  readonly canceled: Readonly<Record<string, { readonly message?: string } | null>>
  readonly unknown: readonly string[]
}

/** A worker, which is called with the findings of a heartbeat. */
export interface HeartbeatMember {
  /** The id of the worker in the database. */
  readonly id: string
  /** Called when a job was canceled. */
  onCanceled(attempt: Attempt, reason: string | undefined): void
  /** Called when the database no longer knows the worker, which was silent for too long. */
  onForgotten(): void
}

/** The presence of a worker in the database, renewed like a lease. Only the database decides when the worker counts as gone. */
class WorkerPresence extends Lease {
  constructor(readonly worker: HeartbeatMember) {
    super({ leaseMs: WORKER_MS, sentAt: performance.now(), leftMs: Number.POSITIVE_INFINITY })
  }

  protected override onLost(reason: LossReason): Error {
    return new Error(`worker ${this.worker.id}: ${reason}`)
  }
}

/**
 * Renews the leases of all jobs of a process, and the presence of its workers, with one statement for all that are due. A job whose lease could not be renewed
 * in time is lost, before another worker may claim it.
 */
export class Heartbeat {
  readonly #engine: EngineContext
  readonly #renewer: LeaseRenewer<Attempt | WorkerPresence>
  readonly #attempts = new Map<number, Attempt>()
  readonly #workers = new Map<string, WorkerPresence>()
  #thread: HeartbeatThread | undefined
  #endedClaims: number[] = []

  constructor(engine: EngineContext) {
    this.#engine = engine
    this.#renewer = new LeaseRenewer<Attempt | WorkerPresence>({
      renew: (renewals, patienceMs) => this.#renew(renewals, patienceMs),
      ...{ maxBatch: MAX_BATCH, maxInFlight: 1, keepsProcessAlive: true },
      onBeforeCheck: () => this.#thread?.drain(),
      onLost: (lease, reason) => this.#onLost(lease, reason),
    })
  }

  /** The attempts that this process holds. */
  get attempts(): IterableIterator<Attempt> {
    return this.#attempts.values()
  }

  /** Renews leases from a separate thread from now on. */
  useThread(): void {
    if (this.#thread) return
    const { database, origin } = this.#engine
    const thread = new HeartbeatThread(
      database,
      (report) => this.#onReport(report),
      (error) => {
        if (this.#thread !== thread) return
        // The thread has ended, so this thread renews again.
        this.#thread = undefined
        emit('dibs:worker.failed', { ...origin, what: 'heartbeat', error })
        for (const attempt of this.#attempts.values()) this.#startRenewal(attempt)
      },
    )
    this.#thread = thread
    for (const attempt of this.#attempts.values()) this.#startRenewal(attempt)
  }

  /** Sends the added attempts to the thread, before a handler begins. */
  flush(): void {
    this.#thread?.flush()
  }

  join(worker: HeartbeatMember): void {
    const presence = new WorkerPresence(worker)
    this.#workers.set(worker.id, presence)
    this.#renewer.add(presence)
  }

  leave(worker: HeartbeatMember): void {
    this.#workers.get(worker.id)?.stopRenewal()
    this.#workers.delete(worker.id)
    if (this.#workers.size > 0) return
    const thread = this.#thread
    this.#thread = undefined
    if (!thread) return
    this.#engine.database.finish(thread.end())
    // Transactions of handlers may still commit.
    for (const attempt of this.#attempts.values()) this.#startRenewal(attempt)
  }

  add(attempt: Attempt): void {
    const { id } = attempt.job
    // This process has claimed the job again, before a heartbeat has shown that the earlier claim was lost.
    const earlier = this.#attempts.get(id)
    if (earlier && !earlier.isBeingEnded) this.#renewer.lose(earlier, 'stolen')
    else if (earlier) this.#renewer.remove(earlier)
    this.#attempts.set(id, attempt)
    this.#startRenewal(attempt)
  }

  remove(attempt: Attempt): void {
    if (this.#attempts.get(attempt.job.id) !== attempt) return
    this.#attempts.delete(attempt.job.id)
    this.#renewer.remove(attempt)
    this.#thread?.remove(attempt)
    const { batch } = attempt.job
    if (--batch.openCount === 0 && this.#endedClaims.length < MAX_ENDED_CLAIMS)
      this.#endedClaims.push(batch.id)
  }

  /** Takes claims whose attempts have all ended. Returns each claim once. */
  takeEndedClaims(max: number): number[] {
    return this.#endedClaims.splice(0, max)
  }

  /** Renews all leases at once, because a job may have been canceled. */
  renewNow(): void {
    this.#thread?.renewNow()
    this.#renewer.renewNow()
  }

  #startRenewal(attempt: Attempt): void {
    this.#thread?.add(attempt)
    // Until the thread has an answer, this thread renews too: the thread may start slowly, and its connections may be worse.
    if (this.#thread?.isAnswered) this.#renewer.watch(attempt)
    else this.#renewer.add(attempt)
  }

  async #renew(
    renewals: readonly Renewal<Attempt | WorkerPresence>[],
    patienceMs: number,
  ): Promise<readonly RenewalState[]> {
    const attempts = renewals.flatMap(({ lease }) => (lease instanceof Attempt ? [lease] : []))
    const column = (value: (attempt: Attempt) => number): string => `{${attempts.map(value).join(',')}}`
    try {
      const [row] = await this.#engine.maintenance.send(
        renewLeases,
        [
          textArray([...this.#workers.keys()]),
          column(({ job }) => job.id),
          column(({ job }) => job.fence),
          column(({ leaseMs }) => leaseMs),
        ],
        { deadlineMs: patienceMs },
      )
      this.#engine.onAnswer()
      const result: HeartbeatResult = JSON.parse(`${row?.result}`)
      this.#announce(attempts, result)
      const stateOf = readStates(result)
      return renewals.map(({ lease }) => (lease instanceof Attempt ? stateOf(lease) : 'held'))
    } catch (error) {
      emit('dibs:worker.failed', { ...this.#engine.origin, what: 'heartbeat', error })
      throw error
    }
  }

  #onReport({ sentAt, claims, result, error }: ThreadReport): void {
    // A report about an earlier claim of the same job does not count.
    const attempts = claims.flatMap(({ id, fence }) => {
      const attempt = this.#attempts.get(id)
      return attempt?.job.fence === fence ? [attempt] : []
    })
    if (result === null) {
      emit('dibs:worker.failed', { ...this.#engine.origin, what: 'heartbeat', error })
      for (const attempt of attempts) this.#renewer.add(attempt)
      return
    }
    const sentHere = performance.now() - Number(process.hrtime.bigint() - sentAt) / 1e6
    const read: HeartbeatResult = JSON.parse(result)
    const stateOf = readStates(read)
    for (const attempt of attempts) {
      if (this.#thread?.isAnswered) this.#renewer.watch(attempt)
      this.#renewer.applyResult(attempt, stateOf(attempt), sentHere, attempt.leaseMs)
    }
    this.#announce(attempts, read)
  }

  /** Tells the workers of canceled jobs, and of workers that the database no longer knows. */
  #announce(attempts: readonly Attempt[], { canceled, unknown }: HeartbeatResult): void {
    if (Object.keys(canceled).length > 0)
      for (const attempt of attempts)
        if (attempt.job.id in canceled)
          this.#workers.get(attempt.worker)?.worker.onCanceled(attempt, canceled[attempt.job.id]?.message)
    for (const id of unknown) this.#workers.get(id)?.worker.onForgotten()
  }

  #onLost(lease: Attempt | WorkerPresence, reason: LossReason): void {
    if (!(lease instanceof Attempt)) return
    this.remove(lease)
    const { job, definition } = lease
    emit('dibs:job.lost', {
      ...this.#engine.origin,
      ...{ id: String(job.id), name: definition.name, fence: job.fence, attempt: job.attempt },
      reason: reason === 'stolen' ? reason : 'lost contact',
    })
  }
}

function readStates({ lost, locked }: HeartbeatResult): (attempt: Attempt) => RenewalState {
  const [lostIds, lockedIds] = [new Set(lost), new Set(locked)]
  return ({ job: { id } }) => (lostIds.has(id) ? 'lost' : lockedIds.has(id) ? 'locked' : 'held')
}
