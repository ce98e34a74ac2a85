import type { Tx } from '../postgres/executor.js'
import type { RowCall, ToldRow } from '../postgres/rows/rows.js'
import type { AggregateSql } from './aggregate-sql.js'

/** Sends what `build` makes of an aggregate's tables as they are. */
export type AggregateCall = (
  tx: Tx | undefined,
  build: (sql: AggregateSql) => RowCall,
  /** How long the first check of the tables may wait. */
  waitMs?: number,
) => Promise<readonly ToldRow[]>

/** How long one statement over the children may take. The server ends it then; if it was over many parents, it is done again in smaller parts. */
export const LIMIT_MS = 30_000

/** So many parents in a row that could not be written in time, and others wait for what these wait for: that is no matter of a parent. */
export const MAX_VAIN = 3
