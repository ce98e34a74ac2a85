import type { Database } from '../postgres/database.js'
import { renewalConnectionOf } from '../postgres/dedicated-connection.js'
import { hedgedSender } from '../postgres/hedged-sender.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import { firstFulfilled } from '../postgres/with-timeout.js'

/**
 * Sends a renewal over the connection for renewals, because handlers may hold all connections of the pool. The pool helps out while that connection is being
 * made, is in use, or cannot be had.
 */
export async function sendRenewal(
  database: Database,
  statement: Statement,
  values: readonly TextValue[],
  patienceMs: number,
): Promise<TextRow[]> {
  const deadlineMs = patienceMs
  const startedAt = performance.now()
  const dedicated = renewalConnectionOf(database)
  const sendOverPool = () => database.send(statement, values, { deadlineMs, duringClose: true })
  if (dedicated.isBusy) return await hedgedSender(database).send(statement, values, { deadlineMs })
  if (!dedicated.isConnected)
    return await firstFulfilled([dedicated.send(statement, values, { deadlineMs }), sendOverPool()])
  return await dedicated
    .send(statement, values, { deadlineMs: patienceMs, connectMs: patienceMs }) // guard: lock.renew-patience
    .catch((error) => {
      // A connection that breaks leaves time for the pool, and one that is silent does not.
      if (performance.now() - startedAt >= patienceMs) throw error
      return sendOverPool()
    })
}
