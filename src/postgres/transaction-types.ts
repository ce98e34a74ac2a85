import type { PoolClient } from 'pg'
import type { RetryLimits } from './conflict-policy.js'
import type { Executor, QueryResult } from './executor.js'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

/** The transaction that `dibs.transaction` and `tx.savepoint` pass to their function. */
export interface Transaction extends Executor {
  /** The number of this run: 1 for the first, one more after each conflict. */
  readonly attempt: number
  readonly isolation: Isolation
  /** The `pg` client itself, for libraries that take a client. Do not commit, roll back or release it. */
  readonly client: PoolClient
  readonly totalCount?: never
  query<R extends object = Record<string, unknown>>(text: string, values?: unknown[]): Promise<QueryResult<R>>
  /**
   * Registers a function that runs after the reply to COMMIT, in order of registration, before `dibs.transaction` resolves. The function does not run after a
   * rollback or a lost reply. An error in it undoes nothing; Dibs emits `dibs:after-commit.failed`.
   */
  afterCommit(fn: () => void | Promise<void>): void
  /**
   * Runs a part that may fail alone. An error in `fn` rolls back what the part did, drops its `afterCommit` functions, and is rethrown. The part uses the
   * `tx` that it gets. Until the part ends, the outer `tx` takes no statements.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   await tx.savepoint((part) => part.query('insert into seen (key) values ($1)', [key])).catch(() => {})
   *   await tx.query('insert into log (key) values ($1)', [key])
   * })
   */
  savepoint<T>(fn: (tx: Transaction) => Promise<T>): Promise<T>
}

/** The options of one call, with its deadline on the monotonic clock of this process. */
export interface Limits extends RetryLimits {
  readonly isolation: Isolation
}
