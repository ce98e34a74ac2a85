import { Refusal } from './explain-error.js'

/** The request is longer than is read. */
export const requestTooLarge = (mostBytes: number): Refusal =>
  new Refusal({
    name: 'requestTooLarge',
    state: 'not started',
    detail: `The request is longer than the ${mostBytes} bytes that are read.`,
  })
