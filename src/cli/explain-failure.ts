import { inspect } from 'node:util'
import { DibsError } from '../errors.js'

/** An error of ours says what to do; the stack of any other helps to find out what it is. */
export function explainFailure(error: unknown): string {
  if (error instanceof DibsError) return `error: ${error.message}`
  return inspect(error)
}
