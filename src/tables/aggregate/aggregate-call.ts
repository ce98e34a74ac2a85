import type { Tx } from '../../postgres/executor.js'
import type { RowCall, RowResult } from '../row-call.js'
import type { AggregateSql } from './aggregate-sql.js'

/** Sends the call that `build` makes for the current definitions of both tables. */
export type AggregateCall = (
  tx: Tx | undefined,
  build: (sql: AggregateSql) => RowCall,
  /** How long the first check of the tables may wait. */
  waitMs?: number,
) => Promise<readonly RowResult[]>

/**
 * The time limit of one statement over the children; the server ends the statement then. A statement over many parents is
 * repeated in smaller parts.
 */
export const LIMIT_MS = 30_000

/** After this many lock timeouts in a row, with no parent written in between, a run stops: their cause is not a single parent. */
export const MAX_TIMEOUTS_IN_A_ROW = 3
