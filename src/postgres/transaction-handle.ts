import type { PoolClient } from 'pg'
import { InvalidInputError } from '../errors.js'
import { checkFunction } from './check-function.js'
import type { QueryResult } from './executor.js'
import { joinedCall, STATEMENT } from './open-calls.js'
import { checkQuery, PgSession, type Session } from './session.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import type { Part } from './together.js'
import type { Isolation, Transaction } from './transaction-types.js'

/**
 * What our own functions can do with a transaction beside what they hand on: share the messages that begin and end it, so
 * that a claim and its outcome cost no round trips of their own.
 */
export type FramedTransaction = Transaction &
  Session & {
    /** The rows of the statement that was sent with BEGIN. */
    readonly opened: readonly TextRow[]
    /** The rows of what was sent with COMMIT. */
    readonly closed: readonly TextRow[]
    /** Sent with COMMIT, before it: if one fails, nothing is committed. */
    closeWith(parts: readonly Part[]): void
    /** What was registered is not done: the function failed, and only that is committed. */
    dropAfterCommits(): void
    /** Does what was left for after the commit, of which it was learned only later that it took place. */
    runAfterCommit(): Promise<void>
    /** Nothing was written: the caller gets its answer, and the transaction is rolled back meanwhile. */
    leave(): void
  }

/** What stands behind the handles of one transaction. */
export interface TransactionCore {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly prepared: boolean
  readonly opened: readonly TextRow[]
  readonly closed: readonly TextRow[]
  closing: readonly Part[] | undefined
  isLeft: boolean
  /** The function failed: its writes are undone, and only its failure is committed. */
  keepsNothing: boolean
  runAfterCommit(): Promise<void>
  refuseCommit(reason: unknown): void
  assertOpen(): void
  guard<T>(handle: TransactionHandle, run: () => Promise<T>): Promise<T>
  savepoint<T>(outer: TransactionHandle, fn: (tx: Transaction) => Promise<T>): Promise<T>
}

/** What would end the transaction behind our back, or start one inside it; see `watchControl` for the rest. */
const control =
  /^[\s;]*(?:commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b/i

/** What a function inside a transaction works with: one for the whole, one for each savepoint. */
export class TransactionHandle extends PgSession implements FramedTransaction {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly refusesOpenCalls = true
  readonly #core: TransactionCore
  readonly afterCommits: (() => void | Promise<void>)[] = []
  /** What a savepoint that is rolled back leaves to the one around it. */
  readonly repeated = new Set<(outer: Session) => Promise<void>>()

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
    return joinedCall(this, 'tx.query', () => this.#query<R>(text, values, callback))
  }

  async #query<R extends object>(
    text: string,
    values: unknown[] | undefined,
    callback: never | undefined,
  ): Promise<QueryResult<R>> {
    checkQuery(text, values, callback)
    if (control.test(text)) {
      throw new InvalidInputError(
        'text',
        `must not end or begin a transaction, as ${JSON.stringify(text.slice(0, 30))} does: return to commit, throw to roll back, use tx.savepoint for a part`,
      )
    }
    return (await this.#core.guard(this, () => super.query(text, values))) as QueryResult<R>
  }

  override send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    return joinedCall(this, STATEMENT, () => this.#core.guard(this, () => super.send(statement, values)))
  }

  afterCommit(fn: () => void | Promise<void>): void {
    this.#core.assertOpen()
    checkFunction('fn', fn)
    this.afterCommits.push(fn)
  }

  get opened(): readonly TextRow[] {
    return this.#core.opened
  }

  get closed(): readonly TextRow[] {
    return this.#core.closed
  }

  closeWith(parts: readonly Part[]): void {
    this.#core.closing = parts
  }

  dropAfterCommits(): void {
    this.afterCommits.length = 0
    this.#core.keepsNothing = true
  }

  runAfterCommit(): Promise<void> {
    return this.#core.runAfterCommit()
  }

  leave(): void {
    this.#core.isLeft = true
  }

  refuseCommit(reason: unknown): void {
    this.#core.refuseCommit(reason)
  }

  repeatOutside(fn: (outer: Session) => Promise<void>): void {
    this.repeated.add(fn)
  }

  savepoint<T>(fn: (tx: Transaction) => Promise<T>): Promise<T> {
    return joinedCall(this, 'tx.savepoint', () => this.#core.savepoint(this, fn))
  }
}
