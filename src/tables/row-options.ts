import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration } from '../options/number-options.js'
import { unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import type { Tx } from '../postgres/executor.js'

/** Options of every call of `dibs.rows`. */
export interface RowOptions {
  /** Your own open transaction. Without it, the call commits by itself. */
  readonly tx?: Tx | undefined
  /** How long to wait for other transactions that have locked the row, then `BusyError`. 0: do not wait. Default 5,000. */
  readonly waitMs?: number | undefined
}

/** How long a call waits by default for rows that others have locked. */
export const WAIT_MS = 5_000

export const rowOptions = optionTable<RowOptions>()('rows.insertOnce, aggregate.recompute', {
  tx: unchecked(),
  waitMs: duration({ default: WAIT_MS, min: 0, max: MAX_TIMER_MS }),
})
