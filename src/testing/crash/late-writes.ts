import type { TestSession } from '../explore/session/test-session.js'

/** A row that a zombie has changed or deleted, although the recovery had written it meanwhile. */
export interface LateWrite {
  /** The name of the table with its schema, quoted where needed. */
  readonly table: string
  /** The row as the recovery had written it. */
  readonly row: Readonly<Record<string, unknown>>
}

interface RowVersion {
  readonly id: string
  readonly row: Record<string, unknown>
}

/** Further rows of a table are not read. */
const MAX_ROWS = 10_000

/**
 * Finds the rows that a zombie overwrites. `ctid` and `xmin`, its position and its transaction, identify a row version. An
 * update replaces the version by another, and a delete removes it.
 */
export class LateWrites {
  readonly #testSession: TestSession
  readonly #since: string
  #before: ReadonlyMap<string, readonly RowVersion[]> = new Map()

  private constructor(testSession: TestSession, since: string) {
    this.#testSession = testSession
    this.#since = since
  }

  /** Starts to watch. Only rows of later transactions count. */
  static async watch(testSession: TestSession): Promise<LateWrites> {
    const [row] = await testSession.query<{ xid: string }>(
      'select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::xid::text as xid',
    )
    return new LateWrites(testSession, row?.xid ?? '')
  }

  /** Records the rows that the recovery has written so far. */
  async note(): Promise<void> {
    this.#before = await this.#versions()
  }

  /** Returns the recorded rows that are changed or deleted now. */
  async overwritten(): Promise<readonly LateWrite[]> {
    const after = await this.#versions()
    return [...this.#before].flatMap(([table, versions]) => {
      const ids = new Set(after.get(table)?.map(({ id }) => id))
      // Writing equal values again does no harm.
      const rows = new Set(after.get(table)?.map(({ row }) => JSON.stringify(row)))
      return versions
        .filter(({ id, row }) => !ids.has(id) && !rows.has(JSON.stringify(row))) // guard: crash.late-writes
        .map(({ row }) => ({ table, row }))
    })
  }

  async #versions(): Promise<ReadonlyMap<string, readonly RowVersion[]>> {
    const found = new Map<string, readonly RowVersion[]>()
    for (const table of this.#testSession.writtenTables)
      found.set(
        table,
        await this.#testSession.query<RowVersion>(
          `select t.ctid::text || ' ' || t.xmin::text as id, pg_catalog.to_jsonb(t) as row from ${table} t
           where pg_catalog.age(t.xmin) <= pg_catalog.age('${this.#since}'::xid) limit ${MAX_ROWS}`,
        ),
      )
    return found
  }
}
