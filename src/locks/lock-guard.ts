import {
  BusyError,
  ConflictError,
  DatabaseError,
  FenceLostError,
  InvalidInputError,
  type LossReason,
} from '../errors.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { BRIEFLY, hedgedSender } from '../postgres/hedged-sender.js'
import { joinTransaction } from '../postgres/join.js'
import type { JoinedTransaction } from '../postgres/joined-transaction.js'
import { keepListening } from './keep-listening.js'
import { type GuardOptions, guardOptions } from './lock.js'
import type { LockLease } from './lock-context.js'
import { lockOrigin } from './lock-notifications.js'
import { guardTransaction, readLockState } from './lock-statements.js'

/** How long a guard waits for a call that has locked the row, such as a takeover. */
const ROW_WAIT_MS = 5_000

/** Why a transaction cannot be guarded, by SQLSTATE. */
const UNFIT: Readonly<Record<string, string>> = {
  '3F000': 'is of another database, which has not the schema of this instance',
  '25006': 'is READ ONLY (it must be READ WRITE, on a primary)',
}

/** Ties transactions of the caller to one held lock. */
export class LockGuard {
  readonly #database: Database
  readonly #lock: LockLease
  /** After this time, the server ends a guarded transaction that is idle. */
  readonly #idleMs: string
  // One function for each setting, because a transaction keeps each function once.
  readonly #repeat = (outer: JoinedTransaction) => this.#send(outer, true, true)
  readonly #repeatWithoutIdleLimit = (outer: JoinedTransaction) => this.#send(outer, false, true)

  constructor(database: Database, lock: LockLease, idleMs: number) {
    this.#database = database
    this.#lock = lock
    this.#idleMs = String(idleMs)
  }

  async guard(tx: Tx, options: GuardOptions): Promise<void> {
    const { endsIdle: isWanted } = guardOptions.read(options)
    const session = await joinTransaction(tx, this.#database)
    const endsIdle = isWanted ?? !session.hasNoErrorListener
    if (endsIdle) keepListening(tx)
    await this.#send(session, endsIdle, false)
    session.onSavepointRollback?.(endsIdle ? this.#repeat : this.#repeatWithoutIdleLimit) // guard: lock.guard-savepoint
  }

  /** Reports that a write was refused because of its fence, and asks the database why. Returns the error for the caller. */
  async explainRefusedWrite(): Promise<Error> {
    this.#emitRejected('store')
    const reason = await this.#readState()
    if (reason !== 'held') this.#lock.lose(reason ?? 'stolen')
    return this.#lossError(undefined, 'stolen')
  }

  /** @param isRepeated the transaction was guarded before. It may go on after this holder has released the lock, unless another has it. */
  async #send(session: JoinedTransaction, endsIdle: boolean, isRepeated: boolean): Promise<void> {
    const { name, permit, fence } = this.#lock
    this.#lock.checkDeadline()
    // The server also gets a guard that must fail: the transaction must not commit, whatever its caller does with the error.
    const sentFence = isRepeated || this.#lock.leaseState === 'held' ? String(fence) : null // guard: lock.guard-local-deadline
    const idleMs = endsIdle ? this.#idleMs : null
    const values = [name, String(permit), sentFence, idleMs, String(ROW_WAIT_MS), String(isRepeated)]
    try {
      await session.send(this.#database.render(guardTransaction), values)
    } catch (error) {
      const reason = await this.#explain(error)
      // The transaction must not commit either after the savepoint that it was in is rolled back.
      session.markForRollback?.(reason)
      throw reason
    }
  }

  /** The error for the caller of a guard that the server refused. */
  async #explain(error: unknown): Promise<unknown> {
    const isRefused = error instanceof DatabaseError && error.sqlState === 'DIB03'
    if (!isRefused && !(error instanceof ConflictError)) return this.#explainFault(error)
    if (this.#lock.leaseState !== 'held') {
      this.#emitRejected('guard')
      return this.#lossError(error)
    }
    // A transaction with an old snapshot, or of another database, cannot tell. A statement of its own can.
    const state = await this.#readState()
    if (state === 'held' || state === undefined) {
      if (state && isRefused && error.message.includes('lost'))
        return this.#unfit(`is of another database than ${this.#subject}`, error)
      return isRefused
        ? new ConflictError({ subject: this.#subject, reason: error.message, cause: error })
        : error
    }
    this.#emitRejected('guard')
    this.#lock.lose(state) // guard: lock.guard-refused
    return this.#lossError(error)
  }

  #explainFault(error: unknown): unknown {
    const unfit = error instanceof DatabaseError && UNFIT[error.sqlState]
    if (unfit) return this.#unfit(unfit, error)
    if (!hasWaitedInVain(error)) return error
    return new BusyError(`the row of ${this.#subject}`, ROW_WAIT_MS, 100, { cause: error })
  }

  #unfit(problem: string, cause: unknown): InvalidInputError {
    return new InvalidInputError('tx', `${problem}, and cannot be guarded by ${this.#subject}`, { cause })
  }

  #lossError(cause?: unknown, reason?: LossReason): Error {
    const { signal, fence } = this.#lock
    return signal.reason ?? new FenceLostError(this.#subject, fence, { cause, reason })
  }

  #emitRejected(where: 'guard' | 'store'): void {
    const { name, fence } = this.#lock
    emit('dibs:lock.fence-rejected', { ...lockOrigin(this.#database, name), fence, where })
  }

  get #subject(): string {
    return `lock "${this.#lock.name}"`
  }

  /** The state of the lock outside of any transaction. Undefined if it cannot be read. */
  async #readState(): Promise<'stolen' | 'held' | 'expired' | undefined> {
    try {
      const { name, permit, fence } = this.#lock
      // The caller's transaction may have the last client of the pool.
      const connection = hedgedSender(this.#database, BRIEFLY)
      const values = [name, String(permit), String(fence)]
      const options = { connection, deadlineMs: ROW_WAIT_MS }
      const [row] = await this.#database.send(readLockState, values, options)
      return (row?.state ?? 'stolen') as 'stolen' | 'held' | 'expired'
    } catch {
      return undefined
    }
  }
}
