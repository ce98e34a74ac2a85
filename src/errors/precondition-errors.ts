import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

export interface PreconditionDetails extends DibsErrorOptions {
  readonly header: 'If-Match' | 'If-None-Match'
  /** The version that is there; undefined if there is none, or if it is not known. */
  readonly current?: number | string | undefined
  /** The same as an entity tag. */
  readonly etag?: string | undefined
}

/**
 * What a client expects to be there is not.
 *
 * @example
 * if (error instanceof PreconditionFailedError) console.error(`version ${error.current} is there by now`)
 */
export class PreconditionFailedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_PRECONDITION_FAILED',
    status: 412,
    retryable: false,
    means:
      'The request names, by `If-Match`, a version that is not the current one, or asks, by `If-None-Match`, for something that is not to be there yet. Nothing was written.',
    remedy:
      'The client gets the current version (`ETag`), decides again, and sends a new request. The same one would end the same way.',
  }

  readonly header: PreconditionDetails['header']
  declare readonly current?: number | string | undefined
  declare readonly etag?: string | undefined

  constructor({ header, current, etag, cause }: PreconditionDetails) {
    const found = current === undefined ? '' : ` Version ${current} is there.`
    super(`What the request expects by ${header} is not so.${found} Get it anew and decide again.`, { cause })
    this.header = header
    if (current !== undefined) this.current = current
    if (etag !== undefined) this.etag = etag
  }
}

/**
 * A request must say which version it is meant for, and does not.
 *
 * @example
 * if (error instanceof PreconditionRequiredError) console.error(`${error.header} is missing`)
 */
export class PreconditionRequiredError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_PRECONDITION_REQUIRED',
    status: 428,
    retryable: false,
    means: 'The request must name the version that it is meant for, by `If-Match`, and does not.',
    remedy: 'The client gets the current version and sends its `ETag` as `If-Match`.',
  }

  constructor(
    readonly header: PreconditionDetails['header'],
    options?: DibsErrorOptions,
  ) {
    super(`The request must name a version by ${header}: send the ETag of what you have seen.`, options)
  }
}
