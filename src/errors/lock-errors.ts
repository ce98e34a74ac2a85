import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * A lock cannot be taken, because a transaction that it guards is still open.
 *
 * @example
 * if (error instanceof GuardedError) console.log(`a transaction still works under "${error.lock}"`)
 */
export class GuardedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_GUARDED',
    status: 503,
    retryable: true,
    means:
      'The lock cannot be taken yet. A transaction that is guarded by it (`lock.guard`) is still open, and a bounded wait for its end has timed out.',
    remedy:
      'Try again after `retryAfterMs`. If this happens often, keep guarded transactions short, and await them before you release the lock.',
  }

  constructor(
    readonly lock: string,
    readonly waitedMs: number,
    override readonly retryAfterMs: number,
    options?: DibsErrorOptions,
  ) {
    const waited = waitedMs > 0 ? `, also after ${Math.round(waitedMs)} ms` : ''
    super(
      `Lock "${lock}" is guarded: a transaction that works under it has not ended${waited}. Try again in ${retryAfterMs} ms.`,
      options,
    )
  }
}
