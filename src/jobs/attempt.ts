import { FenceLostError, JobCanceledError, type LossReason } from '../errors.js'
import { Lease } from '../leases/lease.js'
import type { ClaimedJob } from './claimed-job.js'
import type { ResolvedDefinition } from './job-definition.js'

/**
 * The states of an attempt, which is one claim of a job:
 *
 * - `waiting`: claimed ahead. No slot is free yet.
 * - `running`: its handler runs.
 * - `committing`: the transaction of its handler commits, and records the outcome by that.
 * - `recording`: the completer sends its outcome to the database.
 * - `lost`: another worker may have the job. The handler may still run. If it returns, its result is still sent, and the fence decides; but a transactional handler does not commit.
 * - `ended`: its outcome is recorded, or the job was released.
 * - `refused`: the database has not recorded the outcome.
 */
export type AttemptState = 'waiting' | 'running' | 'committing' | 'recording' | 'lost' | 'ended' | 'refused'

/** From each state, the states that may follow. */
const TRANSITIONS: Readonly<Record<AttemptState, readonly AttemptState[]>> = {
  // Released or canceled before its handler has started: `recording`.
  waiting: ['running', 'recording', 'lost'],
  running: ['committing', 'recording', 'lost'],
  // After a conflict the handler runs again. A commit that failed, takes too long or has no answer: `recording`.
  committing: ['running', 'recording', 'ended', 'refused'],
  // If the server cannot store a result, the attempt is recorded again, as dead.
  recording: ['recording', 'ended', 'refused'],
  // The handler of a lost attempt has ended. The database decides whether that was too late.
  lost: ['recording'],
  ended: [],
  refused: [],
}

/** One claim of a job, from the claim to its recorded outcome. All changes of its state are in this file. */
export class Attempt extends Lease {
  readonly job: ClaimedJob
  readonly definition: ResolvedDefinition
  /** The id of the worker. */
  readonly worker: string
  /** Called when the attempt is aborted. */
  onAbort: (() => void) | undefined
  #state: AttemptState = 'waiting'

  /** @param sentAt when the claim was sent: its lease cannot have begun earlier */
  constructor(job: ClaimedJob, definition: ResolvedDefinition, worker: string, sentAt: number) {
    super({ leaseMs: definition.leaseMs, sentAt })
    this.job = job
    this.definition = definition
    this.worker = worker
  }

  get state(): AttemptState {
    return this.#state
  }

  get subject(): string {
    return `job ${this.job.id} ("${this.definition.name}")`
  }

  get isAborted(): boolean {
    return this.abortReason !== undefined
  }

  get isCanceled(): boolean {
    return this.abortReason instanceof JobCanceledError
  }

  /** True once the outcome is on its way to the database, or recorded, or refused. */
  get isConcluded(): boolean {
    return this.#state === 'recording' || this.#state === 'ended' || this.#state === 'refused'
  }

  /** True if the database may show the claim as ended because of this attempt itself. */
  override get isBeingEnded(): boolean {
    return this.#state === 'committing' || this.isConcluded
  }

  /** Called when the handler starts, or starts again after its commit has met a conflict. */
  start(): void {
    this.#moveTo('running')
  }

  /** Called when the handler of a transactional job has returned. Throws the reason of the abort if the attempt may not commit any more. */
  startCommit(): void {
    if (this.#state !== 'running' && this.isAborted) throw this.abortReason
    this.#moveTo('committing')
  }

  startRecording(): void {
    this.#moveTo('recording')
  }

  /** Called when the outcome is recorded. */
  end(): void {
    this.#moveTo('ended')
  }

  /** Called when the database has not recorded the outcome. */
  refuse(): void {
    this.#moveTo('refused')
  }

  /** Gives up an attempt that has no outcome. Returns false if it had lost the job before, or has an outcome. */
  override lose(reason: LossReason): boolean {
    if (this.#state !== 'waiting' && this.#state !== 'running') return false
    this.#moveTo('lost')
    return super.lose(reason)
  }

  protected override onLost(reason: LossReason): Error {
    return new FenceLostError(this.subject, this.job.fence, {
      reason: reason === 'stolen' ? reason : 'lost contact',
    })
  }

  /** Tells the handler to stop. Only the first reason counts. */
  override abort(reason: unknown): void {
    if (this.isAborted) return
    super.abort(reason)
    this.onAbort?.()
  }

  #moveTo(state: AttemptState): void {
    if (!TRANSITIONS[this.#state].includes(state))
      throw new RangeError(`The attempt of ${this.subject} cannot go from "${this.#state}" to "${state}".`)
    this.#state = state
  }
}
