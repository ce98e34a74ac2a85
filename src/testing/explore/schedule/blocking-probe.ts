import type { ClientBase } from 'pg'

/** A backend that waits for other backends. */
export interface BlockedBackend {
  readonly pid: number
  /** The backends that hold the lock, or stand before this backend in the queue for the lock. */
  readonly by: readonly number[]
}

const ISOLATION_TEST = 'pg_isolation_test_session_is_blocked(integer,integer[])'

/**
 * Asks the server which backends wait for which. Elapsed time would not show that. The probe uses the function of
 * PostgreSQL's own isolation tester, which also finds waits for a safe snapshot. That function is undocumented, so the probe
 * works without it too.
 */
export class BlockingProbe {
  readonly #control: ClientBase
  readonly #sql: string

  private constructor(control: ClientBase, hasIsolationTest: boolean) {
    this.#control = control
    const isBlocked = hasIsolationTest
      ? 'or pg_catalog.pg_isolation_test_session_is_blocked(pid, $2::text::int[])'
      : ''
    this.#sql = `
      select pid::text, array_to_string(by, ' ') as by
      from unnest($1::text::int[]) pid,
        lateral (select pg_blocking_pids(pid) || pg_safe_snapshot_blocking_pids(pid)) blocking (by)
      where cardinality(by) > 0 ${isBlocked}`
  }

  static async open(control: ClientBase): Promise<BlockingProbe> {
    const { rows } = await control.query<{ has: boolean }>(
      `select to_regprocedure('pg_catalog.${ISOLATION_TEST}') is not null as has`,
    )
    return new BlockingProbe(control, rows[0]?.has === true)
  }

  /** The backends of `pids` that wait now. `suspects` are all backends for which they may wait. */
  async findBlocked(
    pids: readonly number[],
    suspects: readonly number[],
  ): Promise<Map<number, BlockedBackend>> {
    const values = [`{${pids.join()}}`, `{${suspects.join()}}`]
    const text = this.#sql
    const { rows } = await this.#control.query<{ pid: string; by: string }>({
      name: 'dibs_blocking',
      text,
      values: text.includes('$2') ? values : values.slice(0, 1),
    })
    return new Map(
      // guard: explorer.blocked-probe
      rows.map(({ pid, by }) => [
        Number(pid),
        { pid: Number(pid), by: by.split(' ').filter(Boolean).map(Number) },
      ]),
    )
  }

  /** Describes the lock that a waiting backend wants: `row lock, stock`. */
  async describe(pid: number): Promise<string> {
    const { rows } = await this.#control.query<{
      locktype: string
      granted: boolean
      relation: string | null
    }>(
      `select locktype, granted, relation::regclass::text as relation from pg_locks
       where pid = $1::text::int and (not granted or locktype = 'tuple')`,
      [String(pid)],
    )
    const wanted = rows.find(({ granted }) => !granted)
    // A backend that waits for the writer of a row holds a tuple lock, as its place in the queue for the row. A backend that
    // waits for the writer of a unique key holds none.
    const queued = rows.find(({ locktype }) => locktype === 'tuple')
    if (!wanted) return ''
    switch (wanted.locktype) {
      case 'tuple':
        return `row lock, ${wanted.relation}`
      case 'transactionid':
        return queued ? `row lock, ${queued.relation}` : 'unique key'
      case 'relation':
        return `table lock, ${wanted.relation}`
      case 'advisory':
        return 'advisory lock'
      default:
        return wanted.locktype
    }
  }
}
