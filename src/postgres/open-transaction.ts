import type { PoolClient } from 'pg'
import {
  ConnectionLostError,
  InvalidInputError,
  NotInTransactionError,
  RolledBackError,
  StatementTimeoutError,
  TransactionEndedError,
} from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import type { Checkout } from './checkout.js'
import type { Connections } from './connections.js'
import { emit } from './events.js'
import { isConflict, isReadTimeout, isUnusable, readFault, translateError } from './fault.js'
import { assertAllAwaited, ignoreOpenCalls } from './open-calls.js'
import { transactionStatus } from './pg-client-state.js'
import type { Part } from './pipeline.js'
import { sendCommit } from './send-commit.js'
import type { TextRow } from './text-values.js'
import { type TransactionCore, TransactionHandle } from './transaction-handle.js'
import { newScope, runInside, type TransactionScope } from './transaction-scope.js'
import type { Isolation, Limits, Transaction } from './transaction-types.js'
import { type ControlWatch, watchControl } from './watch-control.js'

/** A transaction between the answer to BEGIN and the answer to COMMIT or ROLLBACK. */
export class OpenTransaction implements TransactionCore {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly prepared: boolean
  readonly beginRows: readonly TextRow[]
  commitRows: readonly TextRow[] = []
  withCommit: readonly Part[] | undefined
  isRolledBackAtEnd = false
  keepsNoWrites = false
  readonly #connections: Connections
  readonly #checkout: Checkout
  readonly #deadlineAt: number
  readonly #scope: TransactionScope
  readonly #control: ControlWatch
  readonly #root: TransactionHandle
  /** The transaction and its open savepoints. Only the last one may send statements. */
  readonly #handles: TransactionHandle[]
  #savepoints = 0
  /** The number of rollbacks to savepoints that were handled. */
  #handledRollbacks = 0
  /** The first error of a statement: the reason if COMMIT is answered with ROLLBACK. */
  #failure: unknown
  /** Why this transaction must not commit, if it is marked for rollback. */
  #rollbackReason: unknown

  constructor(
    checkout: Checkout,
    connections: Connections,
    { isolation, deadlineAt }: Limits,
    attempt: number,
    beginRows: readonly TextRow[],
  ) {
    this.attempt = attempt
    this.beginRows = beginRows
    this.isolation = isolation
    this.client = checkout.client
    this.prepared = connections.prepared
    this.#connections = connections
    this.#checkout = checkout
    this.#deadlineAt = deadlineAt
    this.#scope = newScope(connections)
    this.#control = watchControl(checkout.client)
    this.#root = new TransactionHandle(this)
    this.#handles = [this.#root]
  }

  run<T>(fn: (tx: TransactionHandle) => Promise<T>): Promise<T> {
    return runInside(this.#scope, async () => fn(this.#root))
  }

  assertOpen(): void {
    if (this.#scope.isOpen) return
    throw new NotInTransactionError(
      'a transaction that has ended',
      'Await all its work before its function returns.',
    )
  }

  /** Runs a statement of `handle`, unless another handle is active or the deadline has passed. */
  async guard<T>(handle: TransactionHandle, run: () => Promise<T>): Promise<T> {
    this.#assertActive(handle)
    try {
      const result = await run()
      this.#detectEnd()
      // A savepoint of the caller has undone the earlier failure.
      if (transactionStatus(this.client) === 'T') this.#failure = undefined
      await this.#repeatAfterRollback()
      return result
    } catch (error) {
      if (isUnusable(error)) this.#checkout.broken ??= error
      const reason = this.#checkout.wasCut
        ? this.#deadlineError('the answer did not come')
        : (this.#idleTimeoutError ?? error)
      this.#failure ??= reason
      this.#detectEnd()
      throw reason
    }
  }

  #assertActive(handle: TransactionHandle): void {
    this.assertOpen()
    this.#detectEnd()
    if (this.#rollbackReason !== undefined) throw this.#rollbackReason
    if (performance.now() >= this.#deadlineAt) throw this.#deadlineError('the statement was not sent')
    // guard: transaction.savepoint-order
    if (handle !== this.#handles.at(-1)) {
      throw new InvalidInputError(
        'tx',
        'is not the one to use here: inside tx.savepoint use the tx that it hands over, until it has ended, and not after',
      )
    }
  }

  #deadlineError(consequence: string): StatementTimeoutError {
    return new StatementTimeoutError(`The deadline of this transaction has passed; ${consequence}.`)
  }

  /** The server ends an idle transaction while no statement runs. The next statement learns only that the connection is gone. */
  get #idleTimeoutError(): ConnectionLostError | undefined {
    const { broken } = this.#checkout
    if (readFault(broken)?.sqlState !== '25P03') return undefined
    return new ConnectionLostError(
      'The server has ended this transaction, and nothing was kept: it stood idle for longer than idle_in_transaction_session_timeout, which lock.guard lowers to the leaseMs of the lock.',
      { cause: broken },
    )
  }

  /** Detects that a statement, or a user of `tx.client`, has ended the transaction. */
  #detectEnd(): void {
    const isIdle = this.#checkout.broken === undefined && transactionStatus(this.client) === 'I'
    // guard: transaction.ended-inside
    if (this.#scope.isOpen && (this.#control.transactionCommands > 0 || isIdle))
      this.#rollbackReason ??= new TransactionEndedError()
  }

  async savepoint<T>(outer: TransactionHandle, fn: (tx: Transaction) => Promise<T>): Promise<T> {
    checkFunction('fn', fn)
    this.#assertActive(outer)
    const name = `dibs_${++this.#savepoints}`
    const failure = this.#failure
    const handle = new TransactionHandle(this)
    const depth = this.#handles.push(handle) - 1 // before the first await, so that no other savepoint can start at the same level
    let isSet = false
    try {
      await this.guard(handle, () => this.client.query(`savepoint ${name}`).catch(rethrowTranslated))
      isSet = true
      const value = await fn(handle)
      this.assertOpen()
      assertAllAwaited('savepoint', [handle])
      await this.#release(name)
      outer.afterCommits.push(...handle.afterCommits)
      for (const repeat of handle.repeated) outer.repeated.add(repeat)
      return value
    } catch (error) {
      ignoreOpenCalls([handle])
      // The handle is missing if an outer savepoint has ended, which ends this one.
      if (isSet && this.#handles[depth] === handle && (await this.#rollBackTo(name))) {
        this.#failure = failure
        this.#handles.length = depth
        await this.#repeat(outer, handle.repeated)
      }
      throw error
    } finally {
      if (this.#handles[depth] === handle) this.#handles.length = depth
    }
  }

  markForRollback(reason: unknown): void {
    this.#rollbackReason ??= reason
  }

  /** Repeats all registered work after a rollback to a savepoint of the caller, because it is not known which work was inside. */
  async #repeatAfterRollback(): Promise<void> {
    if (this.#handledRollbacks === this.#control.savepointRollbacks || transactionStatus(this.client) !== 'T')
      return
    this.#handledRollbacks = this.#control.savepointRollbacks
    const inner = this.#handles.at(-1) ?? this.#root
    const all = this.#handles.flatMap(({ repeated }) => [...repeated])
    await this.#repeat(inner, new Set(all))
  }

  async #repeat(handle: TransactionHandle, all: TransactionHandle['repeated']): Promise<void> {
    for (const repeat of all) {
      handle.repeated.add(repeat) // the outer one may be a savepoint too
      await repeat(handle).catch((reason) => this.markForRollback(reason))
    }
  }

  async #release(name: string): Promise<void> {
    try {
      await this.client.query(`release savepoint ${name}`)
    } catch (error) {
      // RELEASE fails if the function ignored the error of a statement.
      if (this.#failure === undefined || isUnusable(error)) throw translateError(error)
      if (isConflict(this.#failure)) throw this.#failure
      throw new RolledBackError('savepoint', { cause: this.#failure })
    }
  }

  /** Rolls back to the savepoint. If that fails, the whole transaction is marked for rollback. */
  async #rollBackTo(name: string): Promise<boolean> {
    if (!this.#scope.isOpen) return false // the transaction is being rolled back, perhaps on a client that another call uses by now
    try {
      await this.client.query(`rollback to savepoint ${name}; release savepoint ${name}`)
      this.#handledRollbacks++ // the work inside is known, and the caller repeats it
      return true
    } catch (error) {
      this.#rollbackReason ??= translateError(error)
      return false
    }
  }

  async commit(): Promise<void> {
    await this.#repeatAfterRollback() // after a rollback by `tx.client`
    this.#detectEnd()
    this.#scope.isOpen = false
    // guard: transaction.commit-deadline
    if (this.#checkout.wasCut || performance.now() >= this.#deadlineAt)
      throw this.#deadlineError('COMMIT was not sent')
    if (this.#checkout.broken !== undefined) {
      // The loss was noticed before COMMIT was sent, so nothing is unknown.
      const lost = 'The connection was lost before COMMIT was sent: nothing was kept.'
      throw this.#idleTimeoutError ?? new ConnectionLostError(lost, { cause: this.#checkout.broken })
    }
    if (this.#rollbackReason !== undefined) throw this.#rollbackReason
    // A failure undoes all writes, including those of calls that are still open.
    // guard: transaction.joined-awaited, transaction.joined-awaited-client
    if (!this.keepsNoWrites) assertAllAwaited('transaction', [this.#root, this.client])
    if (this.keepsNoWrites) ignoreOpenCalls(this.#joined)
    const { command, rows } = await sendCommit(this.#checkout, this.#control, this, this.#connections.origin)
    this.commitRows = rows
    if (this.#control.transactionCommands > 1) throw new TransactionEndedError() // COMMIT itself counts as one
    if (command === 'COMMIT') return // guard: transaction.commit-answer
    // The server answers COMMIT of a failed transaction with ROLLBACK, without an error.
    if (isConflict(this.#failure)) throw this.#failure
    throw new RolledBackError('transaction', { cause: this.#failure })
  }

  /** All objects that a call may get as `tx` of this transaction. */
  get #joined(): readonly object[] {
    return [...this.#handles, this.client]
  }

  /** Closes the transaction after `error` ended the function or the commit. Returns the error for the caller. */
  closeAfterError(error: unknown): unknown {
    ignoreOpenCalls(this.#joined)
    this.#detectEnd()
    this.#scope.isOpen = false
    // `tx.client` may time out. Its other errors show on the connection.
    if (isReadTimeout(error)) this.#checkout.broken ??= error
    if (this.#rollbackReason instanceof TransactionEndedError)
      return new TransactionEndedError({ cause: error })
    // "Current transaction is aborted": the error that aborted it says more, and may be a conflict.
    if (readFault(error)?.sqlState === '25P02' && isConflict(this.#failure)) return this.#failure
    return error
  }

  stopWatching(): void {
    this.#control.stop()
  }

  async runAfterCommit(): Promise<void> {
    for (const fn of this.#root.afterCommits) {
      try {
        await fn()
      } catch (error) {
        emit('dibs:after-commit.failed', { ...this.#connections.origin, error })
      }
    }
  }
}

function rethrowTranslated(error: unknown): never {
  throw translateError(error)
}
