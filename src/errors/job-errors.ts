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
    means: 'The handler of a job took longer than its `timeoutMs`: that attempt has failed.',
    remedy:
      'It is tried again by its retry policy. Let the handler end when `ctx.signal` fires, or give it more time.',
  }

  constructor(
    /** The job, as a reader would name it: `job 17 ("email")`. */
    readonly subject: string,
    readonly timeoutMs: number,
    options?: DibsErrorOptions,
  ) {
    super(`The handler of ${subject} took longer than ${timeoutMs} ms, and was given up.`, options)
  }
}

/**
 * A job was canceled: the reason of `ctx.signal` for its handler, and what `jobs.result` says.
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
    remedy: 'In a handler: stop. Elsewhere: add the job again if it is still wanted.',
  }

  constructor(
    readonly subject: string,
    /** What whoever canceled it has said. */
    readonly reason?: string,
    options?: DibsErrorOptions,
  ) {
    super(`The ${subject} was canceled${reason ? `: ${reason}` : ''}.`, options)
  }
}

/**
 * A job has waited until its `expiresAt`, for its first attempt or for the next.
 *
 * @example
 * if (error instanceof JobExpiredError) console.warn('too late to be of use')
 */
export class JobExpiredError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_JOB_EXPIRED',
    status: 410,
    retryable: false,
    means: 'Nobody has begun the job, or its next attempt, before its `expiresAt`, so nobody will.',
    remedy: 'Add it again if it is still wanted; see that there are enough workers for its queue.',
  }

  constructor(
    readonly subject: string,
    /** How often it was run before. */
    readonly attempts = 0,
    /** What the last attempt has failed with. */
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
 * A worker stops, and gives back what it has not done: the reason of `ctx.signal`.
 *
 * @example
 * if (ctx.signal.reason instanceof WorkerStoppedError) await ctx.progress({ page })
 */
export class WorkerStoppedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_WORKER_STOPPED',
    status: 503,
    retryable: true,
    means: 'The worker stops, and its time to finish is over: the job was given back, and another runs it.',
    remedy: 'Stop. The attempt does not count.',
  }

  constructor(
    readonly worker: string,
    options?: DibsErrorOptions,
  ) {
    super(`The worker ${worker} stops; the job was given back.`, options)
  }
}
