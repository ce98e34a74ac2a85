import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * A handler took longer than its `timeoutMs`.
 *
 * @example
 * ctx.signal.addEventListener('abort', () => {
 *   if (ctx.signal.reason instanceof JobTimeoutError) socket.destroy()
 * })
 */
export class JobTimeoutError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_JOB_TIMEOUT',
    status: 504,
    retryable: true,
    means: 'The handler of a job took longer than its `timeoutMs`, so that attempt has failed.',
    remedy:
      'The job is retried by its retry policy. Let the handler end when `ctx.signal` fires, or raise `timeoutMs`.',
  }

  constructor(
    /** The job, in readable form: `job 17 ("email")`. */
    readonly subject: string,
    readonly timeoutMs: number,
    options?: DibsErrorOptions,
  ) {
    super(`The handler of ${subject} took longer than ${timeoutMs} ms, and was given up.`, options)
  }
}

/**
 * A job was canceled. The handler gets this error as the reason of `ctx.signal`, and `jobs.result` throws it.
 *
 * @example
 * const result = await jobs.result(id, { waitMs: 5_000 }).catch((error) => {
 *   if (error instanceof JobCanceledError) return undefined
 *   throw error
 * })
 */
export class JobCanceledError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_JOB_CANCELED',
    status: 409,
    retryable: false,
    means: 'The job was canceled before it succeeded.',
    remedy: 'In a handler, stop the work. Elsewhere, add the job again if it is still needed.',
  }

  constructor(
    readonly subject: string,
    /** The reason that the caller of `cancel` gave. */
    readonly reason?: string,
    options?: DibsErrorOptions,
  ) {
    super(`The ${subject} was canceled${reason ? `: ${reason}` : ''}.`, options)
  }
}

/**
 * No worker started the job, or its next attempt, before its `expiresAt`.
 *
 * @example
 * if (error instanceof JobExpiredError) console.warn('too late to be of use')
 */
export class JobExpiredError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_JOB_EXPIRED',
    status: 410,
    retryable: false,
    means: 'No worker started the job, or its next attempt, before its `expiresAt`, so none will.',
    remedy: 'Add the job again if it is still needed. Check that there are enough workers for its queue.',
  }

  constructor(
    readonly subject: string,
    /** The number of earlier attempts. */
    readonly attempts = 0,
    /** The error message of the last attempt. */
    failure?: string,
    options?: DibsErrorOptions,
  ) {
    super(`The ${subject} has expired ${sayWhen(attempts, failure)}.`, options)
  }
}

function sayWhen(attempts: number, failure: string | undefined): string {
  if (attempts === 0) return 'before anybody began it'
  const count = attempts === 1 ? '1 attempt' : `${attempts} attempts`
  const which = attempts === 1 ? 'which' : 'the last of which'
  return `after ${count}${failure ? `, ${which} failed: ${failure.replace(/\.$/, '')}` : ''}`
}

/**
 * A worker stops, and releases its unfinished jobs. A handler gets this error as the reason of `ctx.signal`.
 *
 * @example
 * if (ctx.signal.reason instanceof WorkerStoppedError) await ctx.progress({ page })
 */
export class WorkerStoppedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_WORKER_STOPPED',
    status: 503,
    retryable: true,
    means:
      'The worker stops, and the time for its jobs to finish is over. The job was released, and another worker runs it.',
    remedy: 'Stop the work. The attempt does not count.',
  }

  constructor(
    readonly worker: string,
    options?: DibsErrorOptions,
  ) {
    super(`The worker ${worker} stops; the job was released.`, options)
  }
}
