/** Rows as lists of values, in the order of `columns`. A statement without rows has no columns. */
export interface PostgresJsAnswer extends ArrayLike<ArrayLike<unknown>> {
  readonly columns?: ArrayLike<{ readonly name: string }>
  readonly count: number | null
}

export interface PostgresJsQuery extends PromiseLike<unknown> {
  values(): PostgresJsRows
  raw(): PostgresJsRows
}

export interface PostgresJsRows extends PromiseLike<PostgresJsAnswer> {
  cancel?(): unknown
}

/** The `TransactionSql` of postgres.js. */
export interface PostgresJsTransaction {
  unsafe(text: string, values?: unknown[], options?: object): PostgresJsQuery
  /** The `sql` of a pool does not have this method. */
  savepoint(...args: never[]): PromiseLike<unknown>
}
