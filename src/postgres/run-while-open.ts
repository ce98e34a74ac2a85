import { NotInTransactionError } from '../errors.js'
import { hasQueuedEnd } from './transaction-control.js'

const advice = 'Await all work of a transaction before its function returns.'

/**
 * Runs a statement inside a transaction of another library, and never outside of it.
 *
 * A library learns from the answer to COMMIT that its transaction has ended. A call that was not awaited may come after
 * COMMIT was sent, and the server would run it alone. If the `pg` client is known, its queue shows the COMMIT, and the
 * statement is not sent. Otherwise `isOpen` is checked again afterwards.
 */
export async function runWhileOpen<T>(
  library: string,
  isOpen: () => boolean,
  run: () => PromiseLike<T>,
  client?: unknown,
): Promise<T> {
  if (!isOpen()) throw new NotInTransactionError(`a ${library} transaction that has ended`, advice)
  // guard: transaction.queued-commit
  if (hasQueuedEnd(client))
    throw new NotInTransactionError(
      `a ${library} transaction on which COMMIT or ROLLBACK was sent before`,
      advice,
    )
  const result = await run()
  if (isOpen()) return result
  throw endedMeanwhile(library)
}

/** The error for a statement that ran, perhaps outside of the transaction. */
export function endedMeanwhile(library: string, cause?: unknown): NotInTransactionError {
  const description = `a ${library} transaction that ended while this statement ran, perhaps outside of it`
  return new NotInTransactionError(description, advice, { cause })
}
