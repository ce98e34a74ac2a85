import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'
import { setKnown } from './set-known.js'

export interface PreconditionDetails extends DibsErrorOptions {
  readonly header: 'If-Match' | 'If-None-Match'
  /** The current version. Undefined if there is none, or if it is unknown. */
  readonly current?: number | string | undefined
  /** The current version as an entity tag. */
  readonly etag?: string | undefined
}

/**
 * The current version is not what the request expects.
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
      'The version that the request names in `If-Match` is not the current one. Or, by `If-None-Match`, the request asks to create something that exists already. Nothing was written.',
    remedy:
      'The client should read the current version (`ETag`), decide again, and send a new request. The same request would be refused again.',
  }

  declare readonly header: PreconditionDetails['header']
  declare readonly current?: number | string | undefined
  declare readonly etag?: string | undefined

  constructor({ header, current, etag, cause }: PreconditionDetails) {
    const found = current === undefined ? '' : ` Version ${current} is there.`
    super(`What the request expects by ${header} is not so.${found} Get it anew and decide again.`, { cause })
    setKnown<PreconditionFailedError>(this, { header, current, etag })
  }
}

/**
 * A request must name the version that it is meant for, and does not.
 *
 * @example
 * if (error instanceof PreconditionRequiredError) console.error(`${error.header} is missing`)
 */
export class PreconditionRequiredError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_PRECONDITION_REQUIRED',
    status: 428,
    retryable: false,
    means: 'The request must name the version that it is meant for in `If-Match`, and does not.',
    remedy: 'The client should read the current version and send its `ETag` as `If-Match`.',
  }

  constructor(
    readonly header: PreconditionDetails['header'],
    options?: DibsErrorOptions,
  ) {
    super(`The request must name a version by ${header}: send the ETag of what you have seen.`, options)
  }
}
