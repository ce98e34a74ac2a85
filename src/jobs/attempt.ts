import { FenceLostError, type LossReason } from '../errors.js'
import type { ClaimedJob } from './claimed-job.js'
import type { ReadDefinition } from './job-spec.js'

/** What a claim of this process is worth: `held`; `lost`, another has it or may have it; `ended`, its outcome is recorded, or it was given back. */
export type AttemptState = 'held' | 'lost' | 'ended'

/** One claim of a job, from its first moment to its recorded end. */
export class Attempt {
  readonly job: ClaimedJob
  readonly definition: ReadDefinition
  readonly worker: string
  state: AttemptState = 'held'
  /** When its heartbeat is due, by `performance.now()`. */
  renewAt: number
  /** From when on others may have it. */
  endsAt: number
  /** Its end is being recorded: that it is not held any more may be due to that. */
  isEnding = false
  /** The same by a transaction of its own, which may fail: then it goes on. */
  isCommitting = false
  /** Somebody wants it to be given up. */
  isCanceled = false
  /** Its slot was given to another, though its handler has not ended. */
  isStuck = false
  /** Why the server would not record its end. */
  refusal: unknown
  /** Called when it is not to go on. */
  onAbort: (() => void) | undefined
  unwatch: (() => void) | undefined
  #controller: AbortController | undefined
  #reason: unknown

  /** `sentAt`: when it was asked for, before which its lease cannot have begun. */
  constructor(job: ClaimedJob, definition: ReadDefinition, worker: string, sentAt: number) {
    this.job = job
    this.definition = definition
    this.worker = worker
    this.renewAt = sentAt + definition.leaseMs / 3
    this.endsAt = sentAt + definition.leaseMs
  }

  get subject(): string {
    return `job ${this.job.id} ("${this.definition.name}")`
  }

  /** Made when somebody looks: most handlers are done before anybody does. */
  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = new AbortController()
      if (this.#reason !== undefined) this.#controller.abort(this.#reason)
    }
    return this.#controller.signal
  }

  /** It is not to go on, for this reason. The first one counts. */
  abort(reason: unknown): void {
    if (this.#reason !== undefined) return
    this.#reason = reason
    this.#controller?.abort(reason)
    this.onAbort?.()
  }

  /** What is heard of its claim may be due to its end. */
  get mayBeOver(): boolean {
    return this.isEnding || this.isCommitting
  }

  get isAborted(): boolean {
    return this.#reason !== undefined
  }

  renewed(sentAt: number, leaseMs: number): void {
    this.renewAt = sentAt + this.definition.leaseMs / 3
    this.endsAt = Math.max(this.endsAt, sentAt + leaseMs)
  }

  /** Its handler has asked for more time. */
  extended(sentAt: number, ms: number): void {
    this.endsAt = Math.max(this.endsAt, sentAt + ms)
  }

  /** True if it was held until now. */
  lose(reason: LossReason): boolean {
    if (this.state !== 'held') return false
    this.state = 'lost'
    this.abort(new FenceLostError(this.subject, this.job.fence, { reason }))
    return true
  }
}
