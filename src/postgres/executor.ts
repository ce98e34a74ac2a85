/** A row as a driver hands it over. */
export type Row = Record<string, unknown>

export interface QueryResult<R extends object = Row> {
  readonly rows: R[]
  readonly rowCount: number | null
}

/** The least that Dibs asks of a connection. A `pg` Pool or client is one; the adapters make one of the rest. */
export interface Executor {
  query(text: string, values?: unknown[]): Promise<QueryResult>
}

/**
 * An open transaction, given as `tx` to join a call to it: a `pg` client after BEGIN, the `tx` of
 * `dibs.transaction`, or what `fromKysely`, `fromDrizzle`, `fromPrisma`, `fromKnex`, `fromTypeORM` and
 * `fromPostgresJs` return. A Pool is refused by the type and, where types are absent, by `NotInTransactionError`.
 */
export type Tx = Executor & { readonly totalCount?: never }
