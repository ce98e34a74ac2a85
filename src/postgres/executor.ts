/** A row, as a driver returns it. */
export type Row = Record<string, unknown>

export interface QueryResult<R extends object = Row> {
  readonly rows: R[]
  readonly rowCount: number | null
}

/** The minimal interface of a connection. A Pool or client of `pg` has it; the adapters make it for other libraries. */
export interface Executor {
  query(text: string, values?: unknown[]): Promise<QueryResult>
}

/**
 * An open transaction. Pass it as `tx` to make a call part of the transaction. Use a `pg` client after BEGIN, the `tx` of `dibs.transaction`, or the result
 * of `fromKysely`, `fromDrizzle`, `fromPrisma`, `fromKnex`, `fromTypeORM` or `fromPostgresJs`. The type refuses a Pool; without types,
 * `NotInTransactionError` does.
 */
export type Tx = Executor & { readonly totalCount?: never }
