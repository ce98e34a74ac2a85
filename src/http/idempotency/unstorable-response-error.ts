/** The response should be stored, or at least kept until the commit, but cannot be. */
export class UnstorableResponseError extends Error {
  override readonly name = 'UnstorableResponseError'
  /** True if the response says that the work is done. In mode `leased` the work must not be repeated then. */
  readonly isOutcome: boolean

  constructor(message: string, options: { readonly cause?: unknown; readonly isOutcome?: boolean } = {}) {
    super(message, options)
    this.isOutcome = options.isOutcome ?? true
  }
}

export const streamNotStorable = (): UnstorableResponseError =>
  new UnstorableResponseError(
    'The response is a stream, which cannot be replayed. Respond with a complete body, or remove the middleware from this route.',
  )
