import { InvalidInputError } from '../errors.js'
import { Refusal } from './explain-error.js'

/** The request is longer than is read. */
export const requestTooLarge = (mostBytes: number): Refusal =>
  new Refusal({
    name: 'requestTooLarge',
    state: 'not started',
    detail: `The request is longer than the ${mostBytes} bytes that are read.`,
  })

/** Nobody has read the body: whether a repetition is the same cannot be told. */
export const bodyUnread = (advice: string): Refusal =>
  new Refusal({
    name: 'bodyUnread',
    state: 'not started',
    detail: 'The body of the request was not read: this service reads no bodies of its content type here.',
    cause: new InvalidInputError(
      'body',
      `of the request was not read before the middleware, so it cannot tell whether a repetition is the same: ${advice}, or give \`fingerprint\``,
    ),
  })

export const bodyTooDeep = (most: number): Refusal =>
  new Refusal({
    name: 'bodyInvalid',
    state: 'not started',
    detail: `The body of the request is nested deeper than ${most} levels.`,
  })

/** Half a body must not be taken for the whole: the key would belong to a request that the client never made. */
export const requestCutOff = (): Refusal =>
  new Refusal({
    name: 'bodyInvalid',
    state: 'not started',
    detail: 'The connection closed before the request was complete.',
  })
