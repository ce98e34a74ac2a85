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
import { checkFunction } from './check-function.js'
import type { Checkout, Connections } from './connections.js'
import { emit } from './events.js'
import { isConflict, isReadTimeout, isUnusable, readFault, translateError } from './fault.js'
import { assertAllAwaited, ignoreOpenCalls } from './open-calls.js'
import { transactionStatus } from './pg-client-state.js'
import { forgetNames } from './session.js'
import type { TextRow } from './text-values.js'
import { control, type Part, queryTogether } from './together.js'
import { type TransactionCore, TransactionHandle } from './transaction-handle.js'
import type { Isolation, Limits, Transaction } from './transaction-types.js'
import { type ControlWatch, watchControl } from './watch-control.js'

/** In which transactions a flow of calls stands. It lets go of them at their end: what a flow has started keeps it alive. */
interface Scope {
  readonly owner: Connections
  isOpen: boolean
  readonly outer: Scope | undefined
}

const surrounding = new AsyncLocalStorage<Scope>()

function openScope(matches: (scope: Scope) => boolean): Scope | undefined {
  let scope = surrounding.getStore()
  while (scope && !(scope.isOpen && matches(scope))) scope = scope.outer
  return scope
}

/** True inside a transaction of the same instance that has not ended. */
export const isInside = (connections: Connections): boolean =>
  openScope(({ owner }) => owner === connections) !== undefined

/** True inside a transaction of any instance that has not ended. */
export const isInsideAny = (): boolean => openScope(() => true) !== undefined

const COMMIT = control('commit')

/** A transaction between the answer to BEGIN and the answer to COMMIT or ROLLBACK. */
export class OpenTransaction implements TransactionCore {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly prepared: boolean
  readonly opened: readonly TextRow[]
  closed: readonly TextRow[] = []
  closing: readonly Part[] | undefined
  isLeft = false
  keepsNothing = false
  readonly #connections: Connections
  readonly #checkout: Checkout
  readonly #deadlineAt: number
  readonly #scope: Scope
  readonly #control: ControlWatch
  readonly #whole: TransactionHandle
  /** The whole and the savepoints that are open in it. It is the last one's turn, whoever calls from wherever. */
  readonly #handles: TransactionHandle[]
  #savepoints = 0
  /** How many rollbacks to savepoints are dealt with. */
  #undone = 0
  /** The first error a statement gave, to say later why COMMIT was answered with ROLLBACK. */
  #failure: unknown
  /** Why this transaction must not commit, whatever its function does. */
  #doom: unknown

  constructor(
    checkout: Checkout,
    connections: Connections,
    { isolation, deadlineAt }: Limits,
    attempt: number,
    opened: readonly TextRow[],
  ) {
    this.attempt = attempt
    this.opened = opened
    this.isolation = isolation
    this.client = checkout.client
    this.prepared = connections.prepared
    this.#connections = connections
    this.#checkout = checkout
    this.#deadlineAt = deadlineAt
    this.#scope = { owner: connections, isOpen: true, outer: openScope(() => true) }
    this.#control = watchControl(checkout.client)
    this.#whole = new TransactionHandle(this)
    this.#handles = [this.#whole]
  }

  run<T>(fn: (tx: TransactionHandle) => Promise<T>): Promise<T> {
    return surrounding.run(this.#scope, async () => fn(this.#whole))
  }

  assertOpen(): void {
    if (this.#scope.isOpen) return
    throw new NotInTransactionError(
      'a transaction that has ended',
      'Await all its work before its function returns.',
    )
  }

  /** Runs a statement of `handle`, if it is its turn and there is time. */
  async guard<T>(handle: TransactionHandle, run: () => Promise<T>): Promise<T> {
    this.#assertTurn(handle)
    try {
      const result = await run()
      this.#noticeEnd()
      // What failed before was undone by a savepoint of the caller's own.
      if (transactionStatus(this.client) === 'T') this.#failure = undefined
      await this.#repeatUndone()
      return result
    } catch (error) {
      if (isUnusable(error)) this.#checkout.broken ??= error
      const told = this.#checkout.wasCut ? this.#late('the answer did not come') : (this.#idleEnd ?? error)
      this.#failure ??= told
      this.#noticeEnd()
      throw told
    }
  }

  #assertTurn(handle: TransactionHandle): void {
    this.assertOpen()
    this.#noticeEnd()
    if (this.#doom !== undefined) throw this.#doom
    if (performance.now() >= this.#deadlineAt) throw this.#late('the statement was not sent')
    if (handle !== this.#handles.at(-1)) {
      throw new InvalidInputError(
        'tx',
        'is not the one to use here: inside tx.savepoint use the tx that it hands over, until it has ended, and not after',
      )
    }
  }

  #late(what: string): StatementTimeoutError {
    return new StatementTimeoutError(`The deadline of this transaction has passed; ${what}.`)
  }

  /** What the server says of it comes while nothing runs: the next statement only learns that the connection is gone. */
  get #idleEnd(): ConnectionLostError | undefined {
    const { broken } = this.#checkout
    if (readFault(broken)?.sqlState !== '25P03') return undefined
    return new ConnectionLostError(
      'The server has ended this transaction, and nothing was kept: it stood idle for longer than idle_in_transaction_session_timeout, which lock.guard lowers to the leaseMs of the lock.',
      { cause: broken },
    )
  }

  /** Someone with `tx.client` in hand, or hidden in a statement, has ended the transaction. */
  #noticeEnd(): void {
    const isIdle = this.#checkout.broken === undefined && transactionStatus(this.client) === 'I'
    if (this.#scope.isOpen && (this.#control.seen > 0 || isIdle)) this.#doom ??= new TransactionEndedError()
  }

  async savepoint<T>(outer: TransactionHandle, fn: (tx: Transaction) => Promise<T>): Promise<T> {
    checkFunction('fn', fn)
    this.#assertTurn(outer)
    const name = `dibs_${++this.#savepoints}`
    const failure = this.#failure
    const handle = new TransactionHandle(this)
    const depth = this.#handles.push(handle) - 1 // before anything is awaited, so that no other can start beside it
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
      // If it is not there any more, one around it has ended, and this with it.
      if (isSet && this.#handles[depth] === handle && (await this.#undo(name))) {
        this.#failure = failure
        this.#handles.length = depth
        await this.#repeat(outer, handle.repeated)
      }
      throw error
    } finally {
      if (this.#handles[depth] === handle) this.#handles.length = depth
    }
  }

  refuseCommit(reason: unknown): void {
    this.#doom ??= reason
  }

  /** A savepoint that is not ours was rolled back. What was begun inside of it cannot be told from the rest. */
  async #repeatUndone(): Promise<void> {
    if (this.#undone === this.#control.undone || transactionStatus(this.client) !== 'T') return
    this.#undone = this.#control.undone
    const inner = this.#handles.at(-1) ?? this.#whole
    const all = this.#handles.flatMap(({ repeated }) => [...repeated])
    await this.#repeat(inner, new Set(all))
  }

  async #repeat(handle: TransactionHandle, all: TransactionHandle['repeated']): Promise<void> {
    for (const repeat of all) {
      handle.repeated.add(repeat) // it may be a savepoint as well
      await repeat(handle).catch((reason) => this.refuseCommit(reason))
    }
  }

  async #release(name: string): Promise<void> {
    try {
      await this.client.query(`release savepoint ${name}`)
    } catch (error) {
      // It fails after a statement inside did whose error was dropped.
      if (this.#failure === undefined || isUnusable(error)) throw translateError(error)
      if (isConflict(this.#failure)) throw this.#failure
      throw new RolledBackError('savepoint', { cause: this.#failure })
    }
  }

  /** Rolls back to the savepoint; if that cannot be, nothing of the transaction may be kept. */
  async #undo(name: string): Promise<boolean> {
    if (!this.#scope.isOpen) return false // the whole is being rolled back, perhaps on a client that is not ours any more
    try {
      await this.client.query(`rollback to savepoint ${name}; release savepoint ${name}`)
      this.#undone++ // ours, of which is known what was inside
      return true
    } catch (error) {
      this.#doom ??= translateError(error)
      return false
    }
  }

  async commit(): Promise<void> {
    await this.#repeatUndone() // by `tx.client`
    this.#noticeEnd()
    this.#scope.isOpen = false
    if (this.#checkout.wasCut || performance.now() >= this.#deadlineAt)
      throw this.#late('COMMIT was not sent')
    if (this.#checkout.broken !== undefined) {
      // Noticed before COMMIT was sent, so nothing is unknown.
      const lost = 'The connection was lost before COMMIT was sent: nothing was kept.'
      throw this.#idleEnd ?? new ConnectionLostError(lost, { cause: this.#checkout.broken })
    }
    if (this.#doom !== undefined) throw this.#doom
    // After a failure all writes are undone, also those of calls that are still open.
    if (!this.keepsNothing) assertAllAwaited('transaction', [this.#whole, this.client])
    if (this.keepsNothing) ignoreOpenCalls(this.#joined)
    const command = await this.#sendCommit()
    if (this.#control.seen > 1) throw new TransactionEndedError() // ours is one
    if (command === 'COMMIT') return
    // A failed transaction answers COMMIT with ROLLBACK, and no error.
    if (isConflict(this.#failure)) throw this.#failure
    throw new RolledBackError('transaction', { cause: this.#failure })
  }

  /**
   * Only a refusal by a server that is still there afterwards is a definite no. The severity does not tell: it is
   * translated, and a server that dies at COMMIT may have kept it.
   */
  async #sendCommit(): Promise<string> {
    try {
      if (this.closing === undefined) return (await this.client.query('commit')).command
      const { rows, command } = await queryTogether(this.client, [...this.closing, COMMIT], this.prepared)
      this.closed = rows
      return command
    } catch (error) {
      const fault = readFault(error)
      // None was there when ours was sent: it was answered, and the connection ended behind that, whether or not the server
      // said why. What else was asked in the same message is lost with it, and has to be looked for.
      const isAnswered = this.#control.seen === 1 && (fault?.sqlState === undefined || fault.fatal)
      if (isAnswered && this.closing === undefined) {
        this.#checkout.broken ??= error
        return 'COMMIT'
      }
      // A refused COMMIT is not counted: someone was before it, and what that kept is kept.
      if (this.#control.seen > 0 && !isAnswered) throw new TransactionEndedError({ cause: error })
      forgetNames(this.client, error)
      // What was to be sent with COMMIT met a transaction that had failed before: COMMIT alone would have said ROLLBACK.
      if (fault?.sqlState === '25P02') return 'ROLLBACK'
      const isRefusal = fault?.sqlState !== undefined && !fault.fatal && fault.kind !== 'unknown outcome'
      if (isRefusal && (await this.#checkout.answers('rollback'))) throw translateError(error)
      this.#checkout.broken ??= error
      emit('dibs:commit.unknown', { ...this.#connections.origin, error })
      throw new CommitOutcomeUnknownError('COMMIT', { cause: error })
    }
  }

  /** Everything that a call can be given to join this transaction. */
  get #joined(): readonly object[] {
    return [...this.#handles, this.client]
  }

  /** Closes after `error` ended the function or the commit, and says what to tell the caller. */
  judge(error: unknown): unknown {
    ignoreOpenCalls(this.#joined)
    this.#noticeEnd()
    this.#scope.isOpen = false
    // From `tx.client`; others of its errors show on the connection itself.
    if (isReadTimeout(error)) this.#checkout.broken ??= error
    if (this.#doom instanceof TransactionEndedError) return new TransactionEndedError({ cause: error })
    // "Current transaction is aborted": what aborted it says more, and may be worth another attempt.
    if (readFault(error)?.sqlState === '25P02' && isConflict(this.#failure)) return this.#failure
    return error
  }

  stopWatching(): void {
    this.#control.stop()
  }

  async runAfterCommit(): Promise<void> {
    for (const fn of this.#whole.afterCommits) {
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
