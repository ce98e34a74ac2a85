import { CommitOutcomeUnknownError, DibsError } from '../errors.js'
import { backoffMs } from '../postgres/retry.js'

/** The most jobs that one statement claims. */
const MAX_BATCH = 500

/** The failed claims of a fetcher, and their consequences for the next claims: fewer jobs, a pause, and a search for orphaned jobs. */
export class ClaimFailures {
  #count = 0
  #maxBatch = MAX_BATCH
  #mayHaveOrphans = false

  /** How many jobs the next statement may claim. Fewer after a failure: their inputs may be too large to be sent in time. */
  get maxBatch(): number {
    return this.#maxBatch
  }

  /** True after the answer to a claim was lost. The jobs of that claim, if any, run nowhere. */
  get mayHaveOrphans(): boolean {
    return this.#mayHaveOrphans
  }

  onAnswer(): void {
    this.#count = 0
    this.#maxBatch = Math.min(MAX_BATCH, this.#maxBatch * 2)
  }

  onOrphansReleased(): void {
    this.#mayHaveOrphans = false
  }

  /** Notes an error after which jobs may be claimed that this process does not know. */
  noteError(error: unknown): void {
    this.#mayHaveOrphans ||= error instanceof CommitOutcomeUnknownError || !(error instanceof DibsError)
  }

  reduceBatch(): void {
    this.#maxBatch = Math.max(1, Math.floor(this.#maxBatch / 4))
  }

  /** Counts a failure in a row. Returns the pause before the next claim. */
  countFailure(): number {
    this.#count++
    return Math.ceil(50 + backoffMs(this.#count, 100, 5_000))
  }
}
