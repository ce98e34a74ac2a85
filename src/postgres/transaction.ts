import { AsyncLocalStorage } from 'node:async_hooks'
import type { PoolClient } from 'pg'
import {
  CommitOutcomeUnknownError,
  ConflictError,
  ConnectionLostError,
  InvalidInputError,
  NestedTransactionError,
  NotInTransactionError,
  RolledBackError,
} from '../errors.js'
import { fullJitterMs } from './backoff.js'
import type { Checkout, Connections } from './connections.js'
import { emit } from './events.js'
import type { Executor, QueryResult, Row } from './executor.js'
import { isConflict, readFault, translateError } from './fault.js'
import { PgSession, type Session } from './session.js'
import { sleep } from './sleep.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

export type Isolation = 'read committed' | 'repeatable read' | 'serializable'

export interface TransactionOptions {
  /** Default `read committed`, whatever the server's own default is. */
  readonly isolation?: Isolation
  /**
   * After this no further attempt starts, no further statement is sent, and a statement that still runs is
   * cancelled by the server. Default 30,000; `Infinity` for none.
   */
  readonly deadlineMs?: number
  /** How often to run in all when conflicts occur. Default 10; 1 never repeats. */
  readonly attempts?: number
}

/** What `dibs.transaction` hands to its function. */
export interface Transaction extends Executor {
  /** 1 for the first run, one more for each repetition after a conflict. */
  readonly attempt: number
  readonly isolation: Isolation
  /** The `pg` client itself, for libraries that take one. Do not commit, roll back or release it. */
  readonly client: PoolClient
  readonly totalCount?: never
  query<R extends Row = Row>(text: string, values?: unknown[]): Promise<QueryResult<R>>
  /**
   * Runs after COMMIT was answered, in order of registration, before `dibs.transaction` resolves; never after a
   * rollback or a lost answer. An error in it does not undo anything: it leaves as `dibs:after-commit.failed`.
   */
  afterCommit(fn: () => void | Promise<void>): void
  /** Runs a part that may fail alone: an error rolls back what it did, and is rethrown. */
  savepoint<T>(fn: () => Promise<T>): Promise<T>
}

const levels: readonly Isolation[] = ['read committed', 'repeatable read', 'serializable']

interface Limits {
  readonly isolation: Isolation
  readonly attempts: number
  readonly startedAt: number
  readonly deadlineAt: number
}

/** Which transactions this flow of calls is inside of, to refuse a second one of the same instance. */
const surrounding = new AsyncLocalStorage<{
  readonly owner: Connections
  readonly tx: OpenTransaction
  readonly outer: unknown
}>()

/**
 * Runs `fn` in a transaction, again from its start when it meets a conflict.
 *
 * Why only conflicts: 40001, 40P01 and our own are the failures of which it is known that nothing was kept and
 * that the same call can succeed. A lost COMMIT is neither.
 */
export async function runTransaction<T>(
  connections: Connections,
  fn: (tx: Transaction) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  refuseNesting(connections)
  return await repeatTransaction(connections, fn, options)
}

/** The same without a look at what surrounds it: for our own statements, which are meant to run apart. */
export async function repeatTransaction<T>(
  connections: Connections,
  fn: (tx: Transaction & Session) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  const limits = readOptions(options)
  for (let attempt = 1; ; attempt++) {
    try {
      return await runOnce(connections, fn, limits, attempt)
    } catch (error) {
      if (!isConflict(error)) throw error
      const delayMs = fullJitterMs(attempt, 5, 1000)
      const elapsedMs = performance.now() - limits.startedAt
      if (attempt >= limits.attempts || performance.now() + delayMs >= limits.deadlineAt) {
        emit('dibs:transaction.gave-up', { schema: connections.schema, attempts: attempt, elapsedMs, error })
        throw giveUp(error, attempt)
      }
      emit('dibs:transaction.retried', { schema: connections.schema, attempt, delayMs, error })
      await sleep(delayMs)
    }
  }
}

function readOptions({
  isolation = 'read committed',
  deadlineMs = 30_000,
  attempts = 10,
}: TransactionOptions): Limits {
  if (!levels.includes(isolation)) {
    throw new InvalidInputError(
      'isolation',
      `must be one of ${levels.join(', ')}, not ${JSON.stringify(isolation)}`,
    )
  }
  if (!(typeof deadlineMs === 'number' && deadlineMs > 0)) {
    throw new InvalidInputError('deadlineMs', `must be a number of milliseconds above 0, not ${deadlineMs}`)
  }
  if (!(Number.isSafeInteger(attempts) && attempts >= 1)) {
    throw new InvalidInputError('attempts', `must be a whole number of 1 or more, not ${attempts}`)
  }
  const startedAt = performance.now()
  return { isolation, attempts, startedAt, deadlineAt: startedAt + deadlineMs }
}

function refuseNesting(owner: Connections): void {
  type Scope = ReturnType<typeof surrounding.getStore>
  for (let scope = surrounding.getStore(); scope; scope = scope.outer as Scope) {
    // A flow that outlives its transaction may start another.
    if (scope.owner === owner && scope.tx.isOpen) throw new NestedTransactionError()
  }
}

function giveUp(error: unknown, attempts: number): ConflictError {
  const conflict = translateError(error)
  const { subject, expected, current, sqlState } =
    conflict instanceof ConflictError ? conflict : new ConflictError({ subject: 'the transaction' })
  const reason = readFault(error)?.message
  return new ConflictError({ subject, expected, current, sqlState, attempts, reason, cause: error })
}

async function runOnce<T>(
  connections: Connections,
  fn: (tx: Transaction & Session) => Promise<T>,
  limits: Limits,
  attempt: number,
): Promise<T> {
  const checkout = await connections.take(limits.deadlineAt - performance.now())
  let tx: OpenTransaction | undefined
  let value: T
  try {
    await begin(checkout, limits, connections)
    tx = new OpenTransaction(checkout, connections, limits, attempt)
    const scope = { owner: connections, tx, outer: surrounding.getStore() }
    const body = tx
    value = await surrounding.run(scope, () => fn(body))
    await tx.commit()
  } catch (error) {
    tx?.close()
    await checkout.rollback(error)
    throw error
  }
  checkout.release()
  await tx.runAfterCommit()
  return value
}

/** One message, one round trip. The level is always named, since the server's default is not ours to rely on. */
async function begin(
  checkout: Checkout,
  { isolation, deadlineAt }: Limits,
  { statementTimeoutMs }: Connections,
): Promise<void> {
  let text = `begin isolation level ${isolation} read write`
  const leftMs = Math.ceil(Math.max(1, deadlineAt - performance.now()))
  // Lowers the session's own timeout, never raises it. PostgreSQL takes at most 2^31 - 1.
  if (leftMs < 2 ** 31 && (statementTimeoutMs === 0 || leftMs < statementTimeoutMs)) {
    text += `; set local statement_timeout = ${leftMs}`
  }
  try {
    await checkout.client.query(text)
  } catch (error) {
    throw translateError(error)
  }
}

class OpenTransaction extends PgSession implements Transaction {
  readonly attempt: number
  readonly isolation: Isolation
  readonly client: PoolClient
  readonly #checkout: Checkout
  readonly #schema: string
  readonly #deadlineAt: number
  readonly #afterCommit: (() => void | Promise<void>)[] = []
  #isOpen = true
  #savepoints = 0
  /** The first error a statement gave, to say later why COMMIT was answered with ROLLBACK. */
  #failure: unknown

  constructor(
    checkout: Checkout,
    { schema, prepared }: Connections,
    { isolation, deadlineAt }: Limits,
    attempt: number,
  ) {
    super(checkout.client, prepared)
    this.attempt = attempt
    this.isolation = isolation
    this.client = checkout.client
    this.#checkout = checkout
    this.#schema = schema
    this.#deadlineAt = deadlineAt
  }

  get isOpen(): boolean {
    return this.#isOpen
  }

  close(): void {
    this.#isOpen = false
  }

  override async query<R extends Row = Row>(text: string, values?: unknown[]): Promise<QueryResult<R>> {
    return (await this.#guarded(() => super.query(text, values))) as QueryResult<R>
  }

  override send(statement: RenderedStatement, values: readonly TextValue[]): Promise<TextRow[]> {
    return this.#guarded(() => super.send(statement, values))
  }

  async #guarded<T>(run: () => Promise<T>): Promise<T> {
    if (!this.#isOpen) {
      throw new NotInTransactionError(
        'a transaction that has ended',
        'Await all its work before its function returns.',
      )
    }
    if (performance.now() >= this.#deadlineAt) throw this.#checkout.expired()
    try {
      return await run()
    } catch (error) {
      this.#failure ??= error
      throw error
    }
  }

  afterCommit(fn: () => void | Promise<void>): void {
    if (!this.#isOpen) throw new NotInTransactionError('a transaction that has ended')
    this.#afterCommit.push(fn)
  }

  async savepoint<T>(fn: () => Promise<T>): Promise<T> {
    const name = `dibs_${++this.#savepoints}`
    const failureBefore = this.#failure
    await this.query(`savepoint ${name}`)
    let value: T
    try {
      value = await fn()
    } catch (error) {
      // When the rollback fails as well, the connection is gone and the first error says why.
      await this.query(`rollback to savepoint ${name}; release savepoint ${name}`).then(
        () => {
          this.#failure = failureBefore
        },
        () => {},
      )
      throw error
    }
    await this.query(`release savepoint ${name}`)
    return value
  }

  async commit(): Promise<void> {
    this.close()
    if (this.#checkout.broken) {
      // Noticed before COMMIT was sent, so nothing is unknown.
      throw new ConnectionLostError('The connection was lost before COMMIT was sent: nothing was kept.', {
        cause: this.#checkout.broken,
      })
    }
    if (this.client.getTransactionStatus() === 'I') {
      throw new NotInTransactionError(
        'a transaction that its own function has ended',
        'Do not send COMMIT or ROLLBACK inside dibs.transaction: return to commit, throw to roll back.',
      )
    }
    const command = await this.#sendCommit()
    if (command === 'COMMIT') return
    // A failed transaction answers COMMIT with ROLLBACK, and no error.
    if (isConflict(this.#failure)) throw this.#failure
    throw new RolledBackError({ cause: this.#failure })
  }

  async #sendCommit(): Promise<string> {
    try {
      return (await this.client.query('commit')).command
    } catch (error) {
      const fault = readFault(error)
      // Only a plain refusal by the server is a definite no. Everything else leaves open whether it was kept.
      if (fault?.sqlState && !fault.fatal && fault.kind !== 'unknown outcome') throw translateError(error)
      emit('dibs:commit.unknown', { schema: this.#schema, error })
      throw new CommitOutcomeUnknownError('COMMIT', { cause: error })
    }
  }

  async runAfterCommit(): Promise<void> {
    for (const fn of this.#afterCommit) {
      try {
        await fn()
      } catch (error) {
        emit('dibs:after-commit.failed', { schema: this.#schema, error })
      }
    }
  }
}
