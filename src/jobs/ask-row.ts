import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import type { EngineParts } from './engine-parts.js'

/** How long the reserved connection waits for whoever has the row, each time: heartbeats go over it. */
const LINE_WAIT_MS = 20
const PAUSE_MS = 30
const SILENT_MS = 10_000

/**
 * Sends a statement about one row, which waits for whoever has that row, and answers `locked` if it took too long. It goes over the pool while that has a client to spare; else over
 * the reserved connection, since it may be handlers which wait for this that have them all.
 */
export async function askRow(
  { database, upkeep }: Pick<EngineParts, 'database' | 'upkeep'>,
  statement: Statement,
  values: (waitMs: number) => readonly TextValue[],
  waitMs: number,
): Promise<TextRow | undefined> {
  const until = performance.now() + waitMs
  for (;;) {
    const { pool } = database
    if (pool.idleCount > 0 || pool.totalCount < pool.options.max) {
      const leftMs = Math.max(1, Math.ceil(until - performance.now()))
      return (await database.sendPart(statement, values(leftMs), SILENT_MS))[0]
    }
    const [row] = await upkeep.send(statement, values(LINE_WAIT_MS))
    if (row?.state !== 'locked' || performance.now() >= until) return row
    await sleep(PAUSE_MS)
  }
}
