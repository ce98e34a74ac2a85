import { NotInTransactionError } from '../errors.js'
import { hasQueuedEnd } from './queued-end.js'

const advice = 'Await all work of a transaction before its function returns.'

/**
 * Runs a statement of another library's transaction, and not outside of it.
 *
 * A library learns that its transaction has ended from the answer to COMMIT, so a call that nobody awaited can slip in behind
 * COMMIT, and the server runs it on its own. Where the `pg` client is known, its queue shows a COMMIT that is under way, and
 * the statement is not sent. Elsewhere `isOpen` is asked again afterwards.
 */
export async function runWhileOpen<T>(
  library: string,
  isOpen: () => boolean,
  run: () => PromiseLike<T>,
  client?: unknown,
): Promise<T> {
  if (!isOpen()) throw new NotInTransactionError(`a ${library} transaction that has ended`, advice)
  if (hasQueuedEnd(client))
    throw new NotInTransactionError(
      `a ${library} transaction on which COMMIT or ROLLBACK was sent before`,
      advice,
    )
  const result = await run()
  if (isOpen()) return result
  throw endedMeanwhile(library)
}

/** The statement was carried out, and nobody knows whether inside of the transaction. */
export function endedMeanwhile(library: string, cause?: unknown): NotInTransactionError {
  const given = `a ${library} transaction that ended while this statement ran, perhaps outside of it`
  return new NotInTransactionError(given, advice, { cause })
}
