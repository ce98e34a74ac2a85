import { InvalidInputError } from '../../errors.js'
import type { OperationState, ProblemDetails, ProblemName } from '../problem.js'

/** A problem for the client, and its cause for the operators of the service. */
export interface ExplainedError extends ProblemDetails {
  readonly name: ProblemName
  readonly cause?: unknown
}

/** Thrown by the middleware itself to respond with a problem. */
export class Refusal extends Error {
  readonly explained: ExplainedError

  constructor(explained: ExplainedError) {
    super(explained.detail)
    this.explained = explained
  }
}

/** The client waits no longer. */
export const timedOut = (state: OperationState): Refusal =>
  new Refusal({
    name: 'timedOut',
    state,
    detail: 'The request is not done yet. Repeat it with the same key to learn its outcome.',
    retryAfterMs: 1_000,
  })

export const requestTooLarge = (maxBytes: number): Refusal =>
  new Refusal({
    name: 'requestTooLarge',
    state: 'not started',
    detail: `The body of the request is longer than ${maxBytes} bytes.`,
  })

/** No parser has read the body, so a repetition with another body would look the same. */
export const bodyUnread = (advice: string): Refusal =>
  new Refusal({
    name: 'bodyUnread',
    state: 'not started',
    detail: 'The body of the request was not read: this service does not accept its content type here.',
    cause: new InvalidInputError(
      'body',
      `of the request was not read before the middleware, so it cannot tell whether a repetition is the same: ${advice}, or give \`fingerprint\``,
    ),
  })

export const bodyTooDeep = (maxDepth: number): Refusal =>
  new Refusal({
    name: 'bodyInvalid',
    state: 'not started',
    detail: `The body of the request is nested deeper than ${maxDepth} levels.`,
  })

/** The middleware must not take an incomplete body for the whole: the key would belong to a request that the client never made. */
export const requestCutOff = (): Refusal =>
  new Refusal({
    name: 'bodyInvalid',
    state: 'not started',
    detail: 'The connection closed before the request was complete.',
  })
