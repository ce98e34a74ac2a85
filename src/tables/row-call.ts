import type { StatementLimit } from '../postgres/database.js'
import type { Row } from '../postgres/executor.js'
import type { TextValue } from '../postgres/text-values.js'
import type { Table } from './catalog/table.js'
import type { RowArgs } from './sql-values.js'

/** A call of one of the functions in sql/0022_rows.sql and sql/0023_aggregate.sql, for a table whose columns are known. */
export interface RowCall {
  readonly name: 'row_write' | 'row_lock' | 'row_claim' | 'aggregate_recompute' | 'aggregate_refresh'
  /** The arguments between the table and the values. */
  readonly statements: readonly string[]
  readonly args: RowArgs
  /** The arguments after the wait. */
  readonly rest?: readonly TextValue[]
  /** How long the call may wait. 0: do not wait. */
  readonly waitMs: number
  /** The other row that the call may have waited for. */
  readonly second?: { readonly table: Table; readonly held: string } | undefined
  /** For a statement that may take long: it runs in a separate transaction, and the server ends it after this limit. */
  readonly limit?: StatementLimit | undefined
}

/** A row as the caller's driver returns it, and what the SQL function reports about it. */
export interface RowResult {
  readonly state: string
  readonly detail: string | null
  readonly row: Row
}
