/** Rows as lists of values, in the order of `columns`; a statement that answers no rows has no columns. */
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
  /** What the `sql` of a pool does not have. */
  savepoint(...args: never[]): PromiseLike<unknown>
}
