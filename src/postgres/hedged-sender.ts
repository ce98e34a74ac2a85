import { CommitOutcomeUnknownError } from '../errors.js'
import type { Database } from './database.js'
import { NotSentError, renewalConnectionOf } from './dedicated-connection.js'
import type { StatementSender } from './send-options.js'
import { sleep } from './sleep.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { firstFulfilled, withTimeout } from './with-timeout.js'

export interface HedgeOptions {
  /** How long the pool is tried alone before the dedicated connection is tried too. Default 0. */
  readonly afterMs?: number | undefined
  /** How long a statement may take on the dedicated connection: renewals must not wait for it. Default: the deadline. */
  readonly dedicatedMs?: number | undefined
  /** Other values for the dedicated connection, such as a shorter wait for a row. */
  readonly dedicatedValues?: readonly TextValue[] | undefined
  /**
   * False if the same statement on the other connection may have caused these rows. The sender then waits for the other
   * answer.
   */
  readonly isFinal?: ((rows: readonly TextRow[]) => boolean) | undefined
  /** Called when the statement was sent, may have run, and has no answer. */
  readonly onUnanswered?: (() => void) | undefined
}

/** A statement that holds up handlers waits for the pool alone at first, and occupies the dedicated connection only for a moment. */
export const BRIEFLY = { afterMs: 100, dedicatedMs: 1_000 } as const
/** How long such a statement waits for a row on the dedicated connection. */
export const BRIEF_ROW_WAIT_MS = '50'

/** Rows that the same statement on the other connection may have caused. */
class NotFinalError extends Error {
  constructor(readonly rows: TextRow[]) {
    super('the other connection has not answered')
  }
}

/**
 * Hedges a statement that may be repeated. Sends it over the pool, and also over the connection for renewals if that is
 * free before the pool has a client. Handlers may hold all clients of the pool while they wait for this statement.
 */
export function hedgedSender(database: Database, options: HedgeOptions = {}): StatementSender {
  return {
    send: (statement, values, { deadlineMs = 15_000 } = {}) =>
      sendHedged(database, statement, values, deadlineMs, options),
  }
}

async function sendHedged(
  database: Database,
  statement: Statement,
  values: readonly TextValue[],
  deadlineMs: number,
  options: HedgeOptions,
): Promise<TextRow[]> {
  const { afterMs = 0, dedicatedMs = deadlineMs, dedicatedValues = values } = options
  const { isFinal = () => true, onUnanswered } = options
  const dedicated = renewalConnectionOf(database)
  const until = performance.now() + deadlineMs
  const isSent = { pool: false, dedicated: false }
  const poolStarted = new AbortController()
  let isAnswered = false
  const accept = (rows: TextRow[], isSentTwice: boolean): TextRow[] => {
    if (isSentTwice && !isFinal(rows)) throw new NotFinalError(rows)
    isAnswered = true
    return rows
  }
  const sendOverPool = async (): Promise<TextRow[]> => {
    try {
      const onClient = () => {
        if (isAnswered) throw new NotSentError('The dedicated connection has answered.')
        isSent.pool = true
        poolStarted.abort()
      }
      const rows = await database.send(statement, values, { duringClose: true, deadlineMs, onClient })
      return accept(rows, isSent.dedicated)
    } catch (error) {
      poolStarted.abort()
      if (error instanceof CommitOutcomeUnknownError) onUnanswered?.()
      throw error
    }
  }
  const sendOverDedicated = async (): Promise<TextRow[]> => {
    await sleep(afterMs, poolStarted.signal)
    // Several statements may wait for the connection. When it is free, one of them is sent, and the others wait again.
    for (let leftMs = until - performance.now(); dedicated.isBusy; leftMs = until - performance.now()) {
      if (leftMs <= 0) throw new NotSentError('The dedicated connection was not free in time.')
      await withTimeout(dedicated.whenFree(), leftMs, () => {}, poolStarted.signal) // guard: once.renew-beside-others
    }
    if (poolStarted.signal.aborted) throw new NotSentError('The pool has sent the statement.')
    isSent.dedicated = true
    try {
      const rows = await dedicated.send(statement, dedicatedValues, {
        deadlineMs: dedicatedMs,
        connectMs: dedicatedMs,
      })
      return accept(rows, isSent.pool)
    } catch (error) {
      if (error instanceof CommitOutcomeUnknownError) onUnanswered?.()
      throw error
    }
  }
  dedicated.retain()
  const overPool = sendOverPool()
  try {
    return await firstFulfilled([overPool, sendOverDedicated()])
  } catch (error) {
    const [notFinal] = (error as AggregateError).errors.filter((one) => one instanceof NotFinalError)
    // The error of the pool says best what went wrong.
    return notFinal?.rows ?? (await overPool)
  } finally {
    poolStarted.abort()
    dedicated.release()
  }
}
