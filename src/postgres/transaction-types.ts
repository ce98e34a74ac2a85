import type { PoolClient } from 'pg'
import type { Executor, QueryResult } from './executor.js'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

/** What `dibs.transaction` hands to its function. */
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
   * Runs a part that may fail alone: an error rolls back what it did, with the functions it gave to `afterCommit`,
   * and is rethrown. Savepoints may stand inside each other, not beside each other.
   */
  savepoint<T>(fn: () => Promise<T>): Promise<T>
}

/** The options of one call, with its deadline on this process's monotonic clock. */
export interface Limits {
  readonly isolation: Isolation
  readonly attempts: number
  readonly startedAt: number
  readonly deadlineAt: number
}
