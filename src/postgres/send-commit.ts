import { CommitOutcomeUnknownError, TransactionEndedError } from '../errors.js'
import type { Checkout } from './checkout.js'
import { type EventOrigin, emit } from './events.js'
import { readFault, translateError } from './fault.js'
import { forgetNames } from './pg-query.js'
import { controlStatement, type Outcome, type Part, queryPipeline } from './pipeline.js'
import type { ControlWatch } from './watch-control.js'

const COMMIT = controlStatement('commit')

interface CommitOptions {
  /** Statements that are sent in the same message, before COMMIT. */
  readonly withCommit: readonly Part[] | undefined
  readonly prepared: boolean
}

/**
 * Sends COMMIT and returns the command of the answer. Throws `CommitOutcomeUnknownError` if the answer was lost.
 *
 * COMMIT has failed for certain only if the server refuses it and still answers afterwards. The severity of the error is not
 * enough: it is translated, and a server that dies at COMMIT may have committed.
 */
export async function sendCommit(
  checkout: Checkout,
  control: ControlWatch,
  { withCommit, prepared }: CommitOptions,
  origin: EventOrigin,
): Promise<Outcome> {
  const { client } = checkout
  try {
    if (withCommit === undefined) return { rows: [], command: (await client.query('commit')).command }
    return await queryPipeline(client, [...withCommit, COMMIT], prepared)
  } catch (error) {
    const fault = readFault(error)
    // No transaction had ended before COMMIT was sent, so the answer seen is that of COMMIT, and the connection was
    // lost after it. The rows of statements in the same message are lost, and the caller has to read their outcome.
    const isAnswered = control.transactionCommands === 1 && (fault?.sqlState === undefined || fault.fatal) // guard: transaction.commit-admin-end
    if (isAnswered && withCommit === undefined) {
      checkout.broken ??= error
      return { rows: [], command: 'COMMIT' }
    }
    // A refused COMMIT does not count: another user of the connection has ended the transaction before, and those
    // writes may be kept.
    if (control.transactionCommands > 0 && !isAnswered) throw new TransactionEndedError({ cause: error })
    forgetNames(client, error)
    // The statements before COMMIT met a failed transaction. COMMIT alone would have been answered with ROLLBACK.
    if (fault?.sqlState === '25P02') return { rows: [], command: 'ROLLBACK' }
    const isRefusal = fault?.sqlState !== undefined && !fault.fatal && fault.kind !== 'unknown outcome'
    if (isRefusal && (await checkout.answers('rollback'))) throw translateError(error)
    checkout.broken ??= error
    emit('dibs:commit.unknown', { ...origin, error })
    throw new CommitOutcomeUnknownError('COMMIT', { cause: error }) // guard: transaction.commit-unknown
  }
}
