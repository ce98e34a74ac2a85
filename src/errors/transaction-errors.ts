import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * The value passed as `tx` is not an open transaction.
 *
 * @example
 * if (error instanceof NotInTransactionError) console.error(`tx was ${error.given}`)
 */
export class NotInTransactionError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NOT_IN_TRANSACTION',
    status: 500,
    retryable: false,
    means:
      'The value passed as `tx` is not an open transaction: it is a pool, a client before BEGIN, or a library handle.',
    remedy:
      'Pass the transaction itself: a `pg` client after BEGIN, or `fromKysely(trx)`, `fromDrizzle(tx)` and so on. Leave out `tx` to run alone.',
  }

  constructor(
    /** A description of the value that was passed. */
    readonly given: string,
    advice = 'Pass an open transaction, or leave `tx` out to run alone.',
    options?: DibsErrorOptions,
  ) {
    super(`\`tx\` must be an open transaction, but it is ${given}. ${advice}`, options)
  }
}

/** Calls that open their own transaction unless they get one. */
export type NestedCall =
  | 'dibs.transaction'
  | 'dibs.once'
  | 'dibs.singleton'
  | 'dibs.trySingleton'
  | 'dibs.voidSlot'
  | 'dibs.acquire'
  | 'dibs.tryAcquire'

/**
 * `dibs.transaction`, or a call that opens its own transaction, was called inside `dibs.transaction`.
 *
 * @example
 * const save = (tx: Transaction) => tx.query('insert into log default values') // takes the tx of its caller
 * await dibs.transaction(async (tx) => void (await save(tx)))
 */
export class NestedTransactionError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NESTED_TRANSACTION',
    status: 500,
    retryable: false,
    means:
      '`dibs.transaction`, or `dibs.once`, `dibs.singleton`, `dibs.voidSlot` or `dibs.acquire` without `tx`, was called inside `dibs.transaction`. The inner transaction would run on a second connection, and could wait for the outer one forever.',
    remedy: 'Pass the outer `tx` down and use it. For a part that may fail alone, use `tx.savepoint`.',
  }

  constructor(
    /** The call that was nested. */
    readonly call: NestedCall = 'dibs.transaction',
    options?: DibsErrorOptions,
  ) {
    const advice =
      call === 'dibs.transaction'
        ? 'Pass the outer `tx` down instead, or use tx.savepoint for a part that may fail alone.'
        : `Give it that transaction: ${call}(${call.endsWith('cquire') ? '[…], { tx }, …' : '{ …, tx }, …'}).`
    super(`${call} was called inside a dibs.transaction of the same instance. ${advice}`, options)
  }
}

/**
 * `retryOnConflict` was called inside a transaction, or inside another `retryOnConflict`.
 *
 * @example
 * if (error instanceof NestedRetryError) console.error(`take it out of ${error.inside}`)
 */
export class NestedRetryError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NESTED_RETRY',
    status: 500,
    retryable: false,
    means:
      '`retryOnConflict` was called inside `dibs.transaction`, whose parts cannot run again alone, or inside another `retryOnConflict`, where attempts would multiply.',
    remedy: 'Call `retryOnConflict` once, around the whole work. Inside, let conflict errors propagate.',
  }

  constructor(
    /** The surrounding call. */
    readonly inside: 'dibs.transaction' | 'retryOnConflict',
    options?: DibsErrorOptions,
  ) {
    const why =
      inside === 'dibs.transaction'
        ? 'A part of a transaction cannot be run again alone'
        : 'Attempts inside attempts would multiply'
    super(
      `retryOnConflict was called inside ${inside}. ${why}: let the conflict out, and the whole runs again.`,
      options,
    )
  }
}

/**
 * A function given to `dibs.transaction` or `tx.savepoint` returned while calls that use its `tx` still ran.
 *
 * @example
 * if (error instanceof NotAwaitedError) console.error(`await ${error.calls.join(' and ')}`)
 */
export class NotAwaitedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_NOT_AWAITED',
    status: 500,
    retryable: false,
    means:
      'The function of a transaction, or of `tx.savepoint`, returned while a call with its `tx` still ran. COMMIT would have kept a part of that call, so everything was rolled back.',
    remedy: 'Await every call that gets `tx` before the function returns.',
  }

  constructor(
    /** The part that was rolled back. */
    readonly part: 'transaction' | 'savepoint',
    /** The calls that still ran, in the order of their start. */
    readonly calls: readonly string[],
    options?: DibsErrorOptions,
  ) {
    const named = [...new Set(calls)]
    const list = named.length > 5 ? [...named.slice(0, 5), `${named.length - 5} more`] : named
    super(
      `The ${part} was rolled back: its function returned while ${list.join(', ')} still ran. Await every call that is given \`tx\` before the function returns.`,
      options,
    )
  }
}

/**
 * The server replied to COMMIT with ROLLBACK.
 *
 * @example
 * if (error instanceof RolledBackError) console.error('an error was dropped inside:', error.cause)
 */
export class RolledBackError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_ROLLED_BACK',
    status: 500,
    retryable: false,
    means:
      'The server replied to COMMIT with ROLLBACK, because a statement had failed and its error was caught and dropped.',
    remedy:
      'Let the error propagate out of the function, or run the statement that may fail inside `tx.savepoint`.',
  }

  constructor(
    /** The part that was rolled back. */
    readonly part: 'transaction' | 'savepoint',
    options?: DibsErrorOptions,
  ) {
    super(
      `The ${part} was rolled back at its end, because one of its statements had failed and the error was caught. Nothing of it was kept. Let the error out, or run that statement inside a tx.savepoint of its own.`,
      options,
    )
  }
}

/**
 * The transaction ended before its function did.
 *
 * @example
 * if (error instanceof TransactionEndedError) console.error('something inside has sent COMMIT or ROLLBACK')
 */
export class TransactionEndedError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_TRANSACTION_ENDED',
    status: 500,
    retryable: false,
    means:
      'Code inside the function given to `dibs.transaction` sent COMMIT or ROLLBACK, through `tx.client` or in a string of statements. Earlier work may be committed, and later work ran outside of the transaction.',
    remedy: 'Return to commit, throw to roll back. No code that gets `tx.client` may end the transaction.',
  }

  constructor(options?: DibsErrorOptions) {
    super(
      'The transaction ended before its function did: something inside has sent COMMIT or ROLLBACK. A part of the work may be kept. Return to commit, throw to roll back.',
      options,
    )
  }
}

/**
 * The reply to COMMIT was lost. Either all of the work is committed, or none of it.
 *
 * @example
 * if (error instanceof CommitOutcomeUnknownError && (await isDone(id))) return
 */
export class CommitOutcomeUnknownError extends DibsError {
  static override readonly entry: ErrorEntry = {
    code: 'DIBS_COMMIT_OUTCOME_UNKNOWN',
    status: 500,
    retryable: false,
    means:
      'The connection was lost after COMMIT (or a statement that commits by itself) was sent and before its reply. Either all of the work is committed, or none of it.',
    remedy:
      'Check whether the work is there before you do it again, or make it idempotent with a key. Dibs never retries it for you.',
  }

  constructor(
    /** The statement whose reply was lost. */
    readonly statement: string,
    options?: DibsErrorOptions,
  ) {
    super(
      `The connection was lost after ${statement} was sent and before its answer came, so it is unknown whether it took effect. Look before you do it again.`,
      options,
    )
  }
}
