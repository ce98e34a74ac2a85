import { NotInTransactionError } from '../../errors.js'

const advice = 'Await all work of a transaction before its function returns.'

/**
 * Runs a statement of another library's transaction, and not outside of it.
 *
 * Asked again afterwards, because a library learns that its transaction has ended from the answer to COMMIT: a call
 * that nobody awaited can slip in between, and the server runs it on its own.
 */
export async function runWhileOpen<T>(
  library: string,
  isOpen: () => boolean,
  run: () => PromiseLike<T>,
): Promise<T> {
  if (!isOpen()) throw new NotInTransactionError(`a ${library} transaction that has ended`, advice)
  const result = await run()
  if (isOpen()) return result
  const given = `a ${library} transaction that ended while this statement ran, perhaps outside of it`
  throw new NotInTransactionError(given, advice)
}
