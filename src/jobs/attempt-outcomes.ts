import { showError } from '../options/name-given.js'
import { emit, isHeard } from '../postgres/events.js'
import { storeFailure } from '../postgres/stored-failure.js'
import type { Attempt } from './attempt.js'
import type { RecordResult } from './completer.js'
import type { Engine } from './engine.js'
import type { RunResult } from './run-attempt.js'
import { deadWith, type Settlement, settlementOf } from './settlement.js'

/** The counter of each settlement. A canceled job is counted when the cancellation is recorded. */
const COUNTERS = { retry: 'retried', dead: 'failed', snooze: 'snoozed', release: 'released' } as const

/** Decides how the attempts of one worker end, has the completer record that, counts it and emits the events. */
export class AttemptOutcomes {
  readonly counts = { succeeded: 0, failed: 0, retried: 0, snoozed: 0, canceled: 0, lost: 0, released: 0 }
  readonly #engine: Engine
  #unrecorded = 0

  constructor(engine: Engine) {
    this.#engine = engine
  }

  /** The number of outcomes on their way to the database. */
  get unrecorded(): number {
    return this.#unrecorded
  }

  /** Records the end of a handler. */
  conclude(attempt: Attempt, run: Exclude<RunResult, { readonly state: 'not-started' }>): void {
    if (run.state === 'returned') this.#complete(attempt, run.result)
    else if (run.state === 'committed' || run.state === 'refused') this.#concludeCommit(attempt, run.state)
    else if (attempt.state === 'lost') this.counts.lost++
    else if (attempt.isConcluded) return
    else if (run.state === 'unknown') this.release(attempt)
    else if (attempt.isCanceled) this.cancel(attempt, run.error)
    else this.#fail(attempt, run.error)
  }

  /** Lets another worker have the job at once, or after `delayMs`. The attempt does not count. */
  release(attempt: Attempt, delayMs = 0, error: string | null = null): void {
    this.#settle(attempt, { to: 'release', delayMs, error })
  }

  cancel(attempt: Attempt, error?: unknown): void {
    const stored = error === undefined ? null : storeFailure(error)
    this.#settle(attempt, { to: 'canceled', delayMs: 0, error: stored })
  }

  /** The fields of an event about this attempt. */
  about({ job, definition }: Attempt) {
    return { ...this.#engine.origin, id: String(job.id), name: definition.name, attempt: job.attempt }
  }

  #complete(attempt: Attempt, result: string | null): void {
    if (attempt.isConcluded) {
      this.#reportRefusal(attempt)
      return
    }
    this.#record(attempt, undefined, result, (outcome, error) => {
      if (outcome === 'lost') this.#refused(attempt)
      else if (outcome !== 'not-recorded') this.#succeeded(attempt)
      else this.#fail(attempt, new Error(`the result could not be stored: ${showError(error)}`), true)
    })
  }

  /** If the completer has recorded an outcome meanwhile, that one counts. */
  #concludeCommit(attempt: Attempt, end: 'committed' | 'refused'): void {
    if (attempt.state === 'committing') this.#engine.heartbeat.remove(attempt)
    else if (attempt.state !== 'recording' || end === 'refused') return
    if (end === 'committed') this.#succeeded(attempt)
    else this.#refused(attempt)
  }

  #fail(attempt: Attempt, error: unknown, isFinal = false): void {
    const settlement = isFinal ? deadWith(error) : settlementOf(error, attempt.job, attempt.definition.retry)
    emit('dibs:job.failed', {
      ...this.about(attempt),
      isFinal: settlement.to === 'dead',
      isSnoozed: settlement.to === 'snooze',
      retryInMs: settlement.delayMs,
      error,
    })
    this.#settle(attempt, settlement, isFinal)
  }

  /** @param replaces true if this outcome replaces one that the server could not store */
  #settle(attempt: Attempt, settlement: Settlement, replaces = false): void {
    if (attempt.isConcluded && !replaces) return
    const { to, delayMs } = settlement
    this.#record(attempt, settlement, null, (outcome) => {
      if (outcome === 'succeeded') this.#succeeded(attempt)
      else if (outcome === 'lost' || outcome === 'not-recorded') this.#refused(attempt)
      else if (outcome === 'canceled' || to === 'canceled') this.#canceled(attempt)
      else {
        attempt.end()
        this.counts[COUNTERS[to]]++
        if (to === 'dead') return
        // The job is ready, or due at a time that no worker knows of.
        if (delayMs === 0) this.#engine.notifyQueues([attempt.definition.queue])
        else this.#engine.onScheduled(delayMs)
      }
    })
  }

  #record(
    attempt: Attempt,
    settlement: Settlement | undefined,
    result: string | null,
    onRecorded: (outcome: RecordResult, error: unknown) => void,
  ): void {
    attempt.startRecording()
    this.#unrecorded++
    this.#engine.completer.record(attempt, settlement, result, (outcome, error) => {
      // A commit that was on its way may have ended the attempt.
      if (attempt.state === 'recording') onRecorded(outcome, error)
      this.#engine.heartbeat.remove(attempt)
      this.#unrecorded--
    })
  }

  #succeeded(attempt: Attempt): void {
    attempt.end()
    this.counts.succeeded++
    if (isHeard('dibs:job.succeeded')) emit('dibs:job.succeeded', this.about(attempt))
  }

  #canceled(attempt: Attempt): void {
    attempt.end()
    this.counts.canceled++
    emit('dibs:job.canceled', this.about(attempt))
  }

  #refused(attempt: Attempt): void {
    attempt.refuse()
    this.#reportRefusal(attempt)
  }

  /** Reports a handler that has ended too late: another worker has the job, or had it. */
  #reportRefusal(attempt: Attempt): void {
    this.counts.lost++
    emit('dibs:job.refused', { ...this.about(attempt), fence: attempt.job.fence })
  }
}
