import { InvalidInputError } from '../errors.js'
import { checkFunction } from './check-function.js'
import { type DibsEventName, type DibsEvents, onEvent as subscribe } from './events.js'
import { isEventName } from './log-events.js'
import { showGiven } from './name-given.js'

/**
 * Listens to one kind of event in this process; returns what ends it.
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
