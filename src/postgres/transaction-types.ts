import type { PoolClient } from 'pg'
import type { RetryLimits } from './conflict-retry.js'
import type { Executor, QueryResult } from './executor.js'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

/** What `dibs.transaction` and `tx.savepoint` hand to their function. */
export interface Transaction extends Executor {
  /** 1 for the first run, one more for each repetition after a conflict. */
  readonly attempt: number
  readonly isolation: Isolation
  /** The `pg` client itself, for libraries that take one. Do not commit, roll back or release it. */
  readonly client: PoolClient
  readonly totalCount?: never
  query<R extends object = Record<string, unknown>>(text: string, values?: unknown[]): Promise<QueryResult<R>>
  /**
   * Runs after COMMIT was answered, in order of registration, before `dibs.transaction` resolves; never after a
   * rollback or a lost answer. An error in it does not undo anything: it leaves as `dibs:after-commit.failed`.
   */
  afterCommit(fn: () => void | Promise<void>): void
  /**
   * Runs a part that may fail alone: an error rolls back what it did, with what it gave to its `afterCommit`, and
   * is rethrown. The part works with the `tx` it is handed; until it ends, the one around it takes no statements.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   await tx.savepoint((part) => part.query('insert into seen (key) values ($1)', [key])).catch(() => {})
   *   await tx.query('insert into log (key) values ($1)', [key])
   * })
   */
  savepoint<T>(fn: (tx: Transaction) => Promise<T>): Promise<T>
}

/** The options of one call, with its deadline on this process's monotonic clock. */
export interface Limits extends RetryLimits {
  readonly isolation: Isolation
}
