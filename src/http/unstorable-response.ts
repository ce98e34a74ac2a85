/** A response that should be stored, or at least kept until all is committed, and cannot be. */
export class UnstorableResponse extends Error {
  override readonly name = 'UnstorableResponse'
  /** The response says that the work is done. In mode `leased` the work must not be done again. */
  readonly isOutcome: boolean

  constructor(message: string, options: { readonly cause?: unknown; readonly isOutcome?: boolean } = {}) {
    super(message, options)
    this.isOutcome = options.isOutcome ?? true
  }
}

export const refuseStream = (): UnstorableResponse =>
  new UnstorableResponse(
    'The response is a stream, of which no replay is possible. Answer with a whole body, or take this route out of the middleware.',
  )
