import type { ClientBase } from 'pg'

/** Whom a backend waits for, as the server says. */
export interface Blocked {
  readonly pid: number
  /** Backends that hold what it wants, or wanted it first. */
  readonly by: readonly number[]
}

const ISOLATION_TEST = 'pg_isolation_test_session_is_blocked(integer,integer[])'

/**
 * Asks the server who waits for whom; elapsed time says nothing. The function that PostgreSQL's own isolation tester uses
 * also knows waits for a safe snapshot, and is undocumented: hence the second way.
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

  /** Those of `pids` that wait now; `suspects` are all whom they might wait for. */
  async look(pids: readonly number[], suspects: readonly number[]): Promise<Map<number, Blocked>> {
    const values = [`{${pids.join()}}`, `{${suspects.join()}}`]
    const text = this.#sql
    const { rows } = await this.#control.query<{ pid: string; by: string }>({
      name: 'dibs_blocking',
      text,
      values: text.includes('$2') ? values : values.slice(0, 1),
    })
    return new Map(
      rows.map(({ pid, by }) => [
        Number(pid),
        { pid: Number(pid), by: by.split(' ').filter(Boolean).map(Number) },
      ]),
    )
  }

  /** What a waiting backend wants, in words: `row lock, stock`. */
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
    // Whoever waits for a row's writer holds its place in that row's queue meanwhile; whoever waits for the writer of a
    // unique key has no row to queue for.
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
