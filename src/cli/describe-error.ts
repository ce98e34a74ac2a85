import { inspect } from 'node:util'
import { DibsError } from '../errors.js'

/** An error of ours says what to do; the stack of any other helps to find out what it is. */
export function describeError(error: unknown): string {
  // The library's option, by the name it has here.
  if (error instanceof DibsError) return `error: ${error.message.replaceAll('`embedded.dir`', '`--dir`')}`
  return inspect(error)
}
