import { ConnectionLostError } from '../../src/errors.js'

/**
 * For postgres.js, which sends ROLLBACK when the function of a transaction fails, also to a socket that is gone; the
 * TypeError of that nobody can catch. While the function does not end, `sql.begin` fails with the connection.
 */
export function holdWhenLost(work: Promise<void>): Promise<void> {
  return work.catch((error) => {
    if (error instanceof ConnectionLostError) return new Promise<never>(() => {})
    throw error
  })
}
