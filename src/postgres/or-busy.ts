import { BusyError, DatabaseError } from '../errors.js'
import type { Tx } from './executor.js'
import { hasWaitedInVain } from './fault.js'

/** The SQLSTATE that our functions raise if a row was deleted and made again at each of their tries. */
const GAVE_UP = 'DB503'

/** Suggested retry delay for rows that other callers lock only briefly. */
export const SHORT_RETRY_MS = 100

export interface OrBusyOptions {
  /** The caller's transaction. The caller bounds how long a statement in it waits, so the end of that wait is not translated. */
  readonly tx?: Tx | undefined
  readonly retryAfterMs?: number
}

/**
 * Sends a statement that waits a bounded time for rows of other callers. Throws a `BusyError` about `subject` if that
 * wait ends without the row, or the answer is `{ state: 'busy' }`.
 */
export async function orBusy<T extends object>(
  subject: string,
  send: () => Promise<T>,
  { tx, retryAfterMs = SHORT_RETRY_MS }: OrBusyOptions = {},
): Promise<T> {
  const startedAt = performance.now()
  const busy = (cause?: unknown): BusyError => {
    const waitedMs = Math.max(1, Math.round(performance.now() - startedAt))
    return new BusyError(subject, waitedMs, retryAfterMs, { cause })
  }
  const answer = await send().catch((error: unknown) => {
    const isGivenUp = error instanceof DatabaseError && error.sqlState === GAVE_UP
    throw isGivenUp || (tx === undefined && hasWaitedInVain(error)) ? busy(error) : error
  })
  if ('state' in answer && answer.state === 'busy') throw busy()
  return answer
}
