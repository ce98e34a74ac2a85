import type { Stage } from '../explore/stage/stage.js'

/** A row that a zombie has changed or deleted, though whoever took over had written it meanwhile. */
export interface LateWrite {
  /** With its schema, quoted where it must be. */
  readonly table: string
  /** As the one who took over had left it. */
  readonly row: Readonly<Record<string, unknown>>
}

interface Version {
  readonly place: string
  readonly row: Record<string, unknown>
}

/** More rows of a table are not looked at. */
const MOST_ROWS = 10_000

/**
 * Sees what a zombie writes over. A row version is known by its place and the transaction that made it; whoever changes
 * or deletes the row makes another version, or none.
 */
export class LateWrites {
  readonly #stage: Stage
  readonly #since: string
  #before: ReadonlyMap<string, readonly Version[]> = new Map()

  private constructor(stage: Stage, since: string) {
    this.#stage = stage
    this.#since = since
  }

  /** From now on others may write. */
  static async watch(stage: Stage): Promise<LateWrites> {
    const [row] = await stage.ask<{ xid: string }>(
      'select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::xid::text as xid',
    )
    return new LateWrites(stage, row?.xid ?? '')
  }

  /** Notes what others have written so far. */
  async note(): Promise<void> {
    this.#before = await this.#versions()
  }

  /** What is gone of that. */
  async overwritten(): Promise<readonly LateWrite[]> {
    const after = await this.#versions()
    return [...this.#before].flatMap(([table, versions]) => {
      const places = new Set(after.get(table)?.map(({ place }) => place))
      // Whoever writes the same again has done no harm.
      const rows = new Set(after.get(table)?.map(({ row }) => JSON.stringify(row)))
      return versions
        .filter(({ place, row }) => !places.has(place) && !rows.has(JSON.stringify(row)))
        .map(({ row }) => ({ table, row }))
    })
  }

  async #versions(): Promise<ReadonlyMap<string, readonly Version[]>> {
    const found = new Map<string, readonly Version[]>()
    for (const table of this.#stage.tables)
      found.set(
        table,
        await this.#stage.ask<Version>(
          `select t.ctid::text || ' ' || t.xmin::text as place, pg_catalog.to_jsonb(t) as row from ${table} t
           where pg_catalog.age(t.xmin) <= pg_catalog.age('${this.#since}'::xid) limit ${MOST_ROWS}`,
        ),
      )
    return found
  }
}
