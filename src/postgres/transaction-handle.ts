import type { PoolClient } from 'pg'
import { InvalidInputError } from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import type { QueryResult } from './executor.js'
import { checkQuery, type JoinedTransaction, PgTransaction } from './joined-transaction.js'
import { STATEMENT, trackCall } from './open-calls.js'
import type { Part } from './pipeline.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { isTransactionControl } from './transaction-control.js'
import type { Isolation, Transaction } from './transaction-types.js'

/**
 * A transaction for functions of Dibs. Statements can travel in one message with BEGIN and COMMIT, so that a claim and
 * its outcome cost no extra round trips.
 */
export type InternalTransaction = Transaction &
  JoinedTransaction & {
    /** The rows of the statement that was sent with BEGIN. */
    readonly beginRows: readonly TextRow[]
    /** The rows of the statement that was sent with COMMIT. */
    readonly commitRows: readonly TextRow[]
    /** Sends these statements with COMMIT, before it. If one fails, nothing is committed. */
    sendWithCommit(parts: readonly Part[]): void
    /** Drops the `afterCommit` functions and ignores open calls: the function failed, and only its failure is committed. */
    keepNoWrites(): void
    /** Runs the `afterCommit` functions, if the caller learns only later that COMMIT took place. */
    runAfterCommit(): Promise<void>
    /** Rolls back at the end, in the background: nothing was written. */
    rollBackAtEnd(): void
  }

/** The transaction behind the handles. */
export interface TransactionCore {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly prepared: boolean
  readonly beginRows: readonly TextRow[]
  readonly commitRows: readonly TextRow[]
  /** Sent in one message with COMMIT. */
  withCommit: readonly Part[] | undefined
  isRolledBackAtEnd: boolean
  /** True if the function failed: its writes are undone, and only its failure is committed. */
  keepsNoWrites: boolean
  runAfterCommit(): Promise<void>
  markForRollback(reason: unknown): void
  assertOpen(): void
  guard<T>(handle: TransactionHandle, run: () => Promise<T>): Promise<T>
  savepoint<T>(outer: TransactionHandle, fn: (tx: Transaction) => Promise<T>): Promise<T>
}

/** The `tx` that a function inside a transaction gets: one for the whole transaction, and one for each savepoint. */
export class TransactionHandle extends PgTransaction implements InternalTransaction {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly refusesOpenCalls = true
  readonly #core: TransactionCore
  readonly afterCommits: (() => void | Promise<void>)[] = []
  /** Work to repeat in the outer transaction after a rollback to a savepoint. */
  readonly repeated = new Set<(outer: JoinedTransaction) => Promise<void>>()

  constructor(core: TransactionCore) {
    super(core.client, core.prepared)
    this.attempt = core.attempt
    this.isolation = core.isolation
    this.client = core.client
    this.#core = core
  }

  override query<R extends object = Record<string, unknown>>(
    text: string,
    values?: unknown[],
    callback?: never,
  ): Promise<QueryResult<R>> {
    return trackCall(this, 'tx.query', () => this.#query<R>(text, values, callback))
  }

  async #query<R extends object>(
    text: string,
    values: unknown[] | undefined,
    callback: never | undefined,
  ): Promise<QueryResult<R>> {
    checkQuery(text, values, callback)
    if (isTransactionControl(text)) {
      throw new InvalidInputError(
        'text',
        `must not end or begin a transaction, as ${JSON.stringify(text.slice(0, 30))} does: return to commit, throw to roll back, use tx.savepoint for a part`,
      )
    }
    return (await this.#core.guard(this, () => super.query(text, values))) as QueryResult<R>
  }

  override send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    return trackCall(this, STATEMENT, () => this.#core.guard(this, () => super.send(statement, values)))
  }

  afterCommit(fn: () => void | Promise<void>): void {
    this.#core.assertOpen()
    checkFunction('fn', fn)
    this.afterCommits.push(fn)
  }

  get beginRows(): readonly TextRow[] {
    return this.#core.beginRows
  }

  get commitRows(): readonly TextRow[] {
    return this.#core.commitRows
  }

  sendWithCommit(parts: readonly Part[]): void {
    this.#core.withCommit = parts
  }

  keepNoWrites(): void {
    this.afterCommits.length = 0
    this.#core.keepsNoWrites = true
  }

  runAfterCommit(): Promise<void> {
    return this.#core.runAfterCommit()
  }

  rollBackAtEnd(): void {
    this.#core.isRolledBackAtEnd = true
  }

  markForRollback(reason: unknown): void {
    this.#core.markForRollback(reason)
  }

  onSavepointRollback(fn: (outer: JoinedTransaction) => Promise<void>): void {
    this.repeated.add(fn)
  }

  savepoint<T>(fn: (tx: Transaction) => Promise<T>): Promise<T> {
    return trackCall(this, 'tx.savepoint', () => this.#core.savepoint(this, fn))
  }
}
