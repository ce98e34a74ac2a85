import { AsyncLocalStorage } from 'node:async_hooks'
import type { PoolClient } from 'pg'
import {
  CommitOutcomeUnknownError,
  ConnectionLostError,
  InvalidInputError,
  NotInTransactionError,
  RolledBackError,
  StatementTimeoutError,
  TransactionEndedError,
} from '../errors.js'
import type { Checkout, Connections } from './connections.js'
import { emit } from './events.js'
import type { QueryResult } from './executor.js'
import { isConflict, isReadTimeout, isUnusable, readFault, translateError } from './fault.js'
import { nameGiven } from './name-given.js'
import { PgSession } from './session.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import type { Isolation, Limits, Transaction } from './transaction-types.js'

/** Where a flow of calls stands: in which transaction, and in which savepoint of it, 0 for none. */
interface Scope {
  readonly transaction: { readonly owner: Connections; open: OpenTransaction | undefined }
  readonly savepoint: number
  readonly outer: Scope | undefined
}

const surrounding = new AsyncLocalStorage<Scope>()

/** The innermost scope around this call whose transaction is still open; a flow may outlive its transaction. */
function findScope(matches: (transaction: Scope['transaction']) => boolean): Scope | undefined {
  let scope = surrounding.getStore()
  while (scope && !(scope.transaction.open && matches(scope.transaction))) scope = scope.outer
  return scope
}

/** True inside a transaction of the same instance. */
export const isInside = (connections: Connections): boolean =>
  findScope(({ owner }) => owner === connections) !== undefined

/** What would end the transaction behind our back, or start one inside it. */
const control =
  /^\s*(?:commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b/i

/** A transaction between BEGIN and the answer to COMMIT. */
export class OpenTransaction extends PgSession implements Transaction {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly #connections: Connections
  readonly #checkout: Checkout
  readonly #deadlineAt: number
  #afterCommit: (() => void | Promise<void>)[] = []
  /** What scopes refer to. It lets go of this object at the end: what a flow has started keeps its scope alive. */
  readonly #scope: Scope['transaction']
  /** Savepoints that are open, innermost last. */
  readonly #savepoints: number[] = []
  #savepointCount = 0
  /** The first error a statement gave, to say later why COMMIT was answered with ROLLBACK. */
  #failure: unknown
  /** Why this transaction must not commit, whatever its function does. */
  #doom: unknown

  constructor(
    checkout: Checkout,
    connections: Connections,
    { isolation, deadlineAt }: Limits,
    attempt: number,
  ) {
    super(checkout.client, connections.prepared)
    this.attempt = attempt
    this.isolation = isolation
    this.client = checkout.client
    this.#connections = connections
    this.#checkout = checkout
    this.#deadlineAt = deadlineAt
    this.#scope = { owner: connections, open: this }
  }

  get #isOpen(): boolean {
    return this.#scope.open === this
  }

  #close(): void {
    this.#scope.open = undefined
  }

  run<T>(fn: (tx: this) => Promise<T>): Promise<T> {
    return this.#within(0, () => fn(this))
  }

  #within<T>(savepoint: number, fn: () => Promise<T>): Promise<T> {
    return surrounding.run({ transaction: this.#scope, savepoint, outer: findScope(() => true) }, fn)
  }

  override async query<R extends object = Record<string, unknown>>(
    text: string,
    values?: unknown[],
  ): Promise<QueryResult<R>> {
    if (control.test(text)) {
      throw new InvalidInputError(
        'text',
        `must not end or begin a transaction, as ${JSON.stringify(text.slice(0, 30))} does: return to commit, throw to roll back, use tx.savepoint for a part`,
      )
    }
    return (await this.#guarded(() => super.query(text, values))) as QueryResult<R>
  }

  override send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    return this.#guarded(() => super.send(statement, values))
  }

  async #guarded<T>(run: () => Promise<T>): Promise<T> {
    this.#assertUsable()
    try {
      const result = await run()
      this.#noticeEnd()
      return result
    } catch (error) {
      this.#noteFailure(error)
      throw error
    }
  }

  #noteFailure(error: unknown): void {
    this.#failure ??= error
    if (isUnusable(error)) this.#checkout.broken ??= error
  }

  #assertUsable(): void {
    if (!this.#isOpen) {
      throw new NotInTransactionError(
        'a transaction that has ended',
        'Await all its work before its function returns.',
      )
    }
    if (this.#doom !== undefined) throw this.#doom
    this.#assertTime('the statement')
    const scope = findScope(({ open }) => open === this)
    const innermost = this.#savepoints.at(-1) ?? 0
    if (scope && scope.savepoint !== innermost) {
      throw new InvalidInputError(
        'tx',
        'has a savepoint open in another branch of this function, which would undo this with it: await tx.savepoint before going on',
      )
    }
  }

  #assertTime(what: string): void {
    if (performance.now() < this.#deadlineAt) return
    throw new StatementTimeoutError(`The deadline of this transaction has passed; ${what} was not sent.`)
  }

  /** Someone with `tx.client` in hand has sent COMMIT or ROLLBACK. */
  #noticeEnd(): void {
    if (this.#isOpen && this.client.getTransactionStatus() === 'I') this.#doom ??= new TransactionEndedError()
  }

  afterCommit(fn: () => void | Promise<void>): void {
    if (!this.#isOpen) throw new NotInTransactionError('a transaction that has ended')
    if (typeof fn !== 'function')
      throw new InvalidInputError('fn', `must be a function, not ${nameGiven(fn)}`)
    this.#afterCommit.push(fn)
  }

  async savepoint<T>(fn: () => Promise<T>): Promise<T> {
    this.#assertUsable()
    const id = ++this.#savepointCount
    const before = { failure: this.#failure, afterCommit: [...this.#afterCommit] }
    this.#savepoints.push(id) // before anything is awaited, so that no other can start beside it
    try {
      await super.query(`savepoint dibs_${id}`)
    } catch (error) {
      this.#savepoints.pop()
      this.#noteFailure(error)
      throw error
    }
    try {
      const value = await this.#within(id, fn)
      await this.#closeSavepoint(id, 'release')
      return value
    } catch (error) {
      if (this.#savepoints.includes(id)) {
        await this.#closeSavepoint(id, 'rollback')
        this.#failure = before.failure
        this.#afterCommit = before.afterCommit
      }
      throw error
    }
  }

  /** Past the deadline too: what is not undone here would be committed with the rest. */
  async #closeSavepoint(id: number, how: 'release' | 'rollback'): Promise<void> {
    const release = `release savepoint dibs_${id}`
    try {
      await this.client.query(how === 'release' ? release : `rollback to savepoint dibs_${id}; ${release}`)
    } catch (error) {
      // RELEASE fails after a statement inside did whose error was dropped; then this is rolled back after all.
      if (how === 'release') throw new RolledBackError('savepoint', { cause: this.#failure ?? error })
      this.#doom ??= translateError(error)
    }
    this.#savepoints.splice(this.#savepoints.indexOf(id))
  }

  async commit(): Promise<void> {
    this.#close()
    this.#assertTime('COMMIT')
    if (this.#checkout.broken !== undefined) {
      // Noticed before COMMIT was sent, so nothing is unknown.
      throw new ConnectionLostError('The connection was lost before COMMIT was sent: nothing was kept.', {
        cause: this.#checkout.broken,
      })
    }
    if (this.client.getTransactionStatus() === 'I') throw new TransactionEndedError()
    if (this.#doom !== undefined) throw this.#doom
    const command = await this.#sendCommit()
    if (command === 'COMMIT') return
    // A failed transaction answers COMMIT with ROLLBACK, and no error.
    if (isConflict(this.#failure)) throw this.#failure
    throw new RolledBackError('transaction', { cause: this.#failure })
  }

  async #sendCommit(): Promise<string> {
    let isLate = false
    const onNotice = ({ code }: { code?: string | undefined }): void => {
      isLate ||= code === '25P01' // there is no transaction in progress
    }
    this.client.on('notice', onNotice)
    try {
      const { command } = await this.client.query('commit')
      if (isLate) throw new TransactionEndedError()
      return command
    } catch (error) {
      if (error instanceof TransactionEndedError) throw error
      throw await this.#judgeCommit(error)
    } finally {
      this.client.off('notice', onNotice)
    }
  }

  /**
   * Only a refusal by a server that is still there afterwards is a definite no. The severity does not tell: it is
   * translated, and a server that dies at COMMIT may have kept it.
   */
  async #judgeCommit(error: unknown): Promise<unknown> {
    const fault = readFault(error)
    const isRefusal = fault?.sqlState !== undefined && !fault.fatal && fault.kind !== 'unknown outcome'
    if (isRefusal && (await this.#checkout.answers('rollback'))) return translateError(error)
    this.#checkout.broken ??= error
    emit('dibs:commit.unknown', { ...this.#connections.origin, error })
    return new CommitOutcomeUnknownError('COMMIT', { cause: error })
  }

  /** What to tell the caller after `error` ended the function or the commit. */
  judge(error: unknown): unknown {
    const wasOpen = this.#isOpen
    this.#close()
    // From `tx.client`; others of its errors show on the connection itself.
    if (isReadTimeout(error)) this.#checkout.broken ??= error
    if (wasOpen && this.#checkout.broken === undefined && this.client.getTransactionStatus() === 'I') {
      return new TransactionEndedError({ cause: error })
    }
    // "Current transaction is aborted": what aborted it says more, and may be worth another attempt.
    if (readFault(error)?.sqlState === '25P02' && isConflict(this.#failure)) return this.#failure
    return error
  }

  async runAfterCommit(): Promise<void> {
    for (const fn of this.#afterCommit) {
      try {
        await fn()
      } catch (error) {
        emit('dibs:after-commit.failed', { ...this.#connections.origin, error })
      }
    }
  }
}
