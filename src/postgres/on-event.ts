import { InvalidInputError } from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import { showGiven } from '../options/name-given.js'
import { type DibsEventName, type DibsEvents, onEvent as subscribe } from './events.js'
import { isEventName } from './log-events.js'

/**
 * Listens to one kind of event in this process. Returns a function that stops it.
 *
 * @example
 * const stop = onEvent('dibs:transaction.retried', ({ schema, attempt }) => retries.inc({ schema, attempt }))
 */
export function onEvent<N extends DibsEventName>(
  name: N,
  listener: (payload: DibsEvents[N]) => void,
): () => void {
  if (!isEventName(name))
    throw new InvalidInputError(
      'name',
      `must be the name of an event such as "dibs:job.failed", not ${showGiven(name)}`,
    )
  checkFunction('listener', listener)
  return subscribe(name, listener)
}
