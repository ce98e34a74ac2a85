import type { Tx } from '../postgres/executor.js'
import type { RowCall, ToldRow } from '../postgres/rows/rows.js'
import type { Table } from '../postgres/rows/table.js'
import type { AggregateSql } from './aggregate-sql.js'

/** Sends what `build` makes of an aggregate's tables as they are. */
export type AggregateCall = (
  tx: Tx | undefined,
  build: (sql: AggregateSql, parent: Table) => RowCall,
) => Promise<readonly ToldRow[]>

/** How long one statement over many parents may take. The server ends it then, and it is done again in smaller parts. */
export const LIMIT_MS = 30_000
