import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import type { EngineContext } from './engine-context.js'

/** How long each try waits for the row on the dedicated connection, which heartbeats need as well. */
const DEDICATED_WAIT_MS = 20
const PAUSE_MS = 30
/** After this time without an answer, the statement fails. */
const ANSWER_MS = 10_000

/**
 * Sends a statement about one job. The statement waits for the lock of the row, and returns the state `locked` after `waitMs`. While the pool has no free client, it uses
 * the dedicated connection: the handlers that wait for this statement may hold all clients.
 */
export async function updateJobRow(
  { database, maintenance }: Pick<EngineContext, 'database' | 'maintenance'>,
  statement: Statement,
  values: (waitMs: number) => readonly TextValue[],
  waitMs: number,
): Promise<TextRow | undefined> {
  const until = performance.now() + waitMs
  for (;;) {
    const { pool } = database
    if (pool.idleCount > 0 || pool.totalCount < pool.options.max) {
      const leftMs = Math.max(1, Math.ceil(until - performance.now()))
      return (await database.send(statement, values(leftMs), { deadlineMs: ANSWER_MS, duringClose: true }))[0]
    }
    const [row] = await maintenance.send(statement, values(DEDICATED_WAIT_MS))
    if (row?.state !== 'locked' || performance.now() >= until) return row
    await sleep(PAUSE_MS)
  }
}
