import { DibsError, type DibsErrorOptions, type ErrorEntry } from './dibs-error.js'

/**
 * What was given as `tx` is not an open transaction.
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
      'What was given as `tx` is not an open transaction: a pool, a client before BEGIN, or a library handle.',
    remedy:
      'Pass the transaction itself: a pg client after BEGIN, or `fromKysely(trx)`, `fromDrizzle(tx)` and so on. Leave `tx` out to run alone.',
  }

  constructor(
    /** What was given instead. */
    readonly given: string,
    advice = 'Pass an open transaction, or leave `tx` out to run alone.',
    options?: DibsErrorOptions,
  ) {
    super(`\`tx\` must be an open transaction, but it is ${given}. ${advice}`, options)
  }
}

/** What makes a transaction of its own unless it is given one. */
export type NestedCall =
  | 'dibs.transaction'
  | 'dibs.once'
  | 'dibs.singleton'
  | 'dibs.trySingleton'
  | 'dibs.voidSlot'
  | 'dibs.acquire'
  | 'dibs.tryAcquire'

/**
 * `dibs.transaction` inside `dibs.transaction`.
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
      '`dibs.transaction`, or `dibs.once`, `dibs.singleton`, `dibs.voidSlot` or `dibs.acquire` without `tx`, was called inside `dibs.transaction`. The inner one would run on a second connection, outside the first, and could wait for it for ever.',
    remedy: 'Pass the outer `tx` down and use it; for a part that may fail alone use `tx.savepoint`.',
  }

  constructor(
    /** What was called. */
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
 * `retryOnConflict` where something around it is run again already, or cannot be.
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
      '`retryOnConflict` was called inside `dibs.transaction`, of which no part can be run again alone, or inside another `retryOnConflict`, where attempts would multiply.',
    remedy: 'Call it around the whole, once; inside, let conflicts out.',
  }

  constructor(
    /** What it was called in. */
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
 * A function given to `dibs.transaction` or `tx.savepoint` returned while calls that had joined it still ran.
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
      'The function of a transaction, or of `tx.savepoint`, returned while a call that was given its `tx` still ran. COMMIT would have kept a part of that call, so everything was rolled back.',
    remedy: 'Await every call that is given `tx` before the function returns.',
  }

  constructor(
    /** The part that was rolled back. */
    readonly part: 'transaction' | 'savepoint',
    /** The calls that still ran, in the order in which they began. */
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
 * COMMIT was answered with ROLLBACK.
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
      'COMMIT was answered with ROLLBACK: a statement had failed before and its error was caught and dropped.',
    remedy: 'Let the error out of the function, or run the statement that may fail inside `tx.savepoint`.',
  }

  constructor(
    /** What was undone. */
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
      'Something inside the function given to `dibs.transaction` has sent COMMIT or ROLLBACK, with `tx.client` in hand or in a string of statements. What came before may be kept, and what came after ran outside of the transaction.',
    remedy:
      'Return to commit, throw to roll back, and let nobody who is given `tx.client` end the transaction.',
  }

  constructor(options?: DibsErrorOptions) {
    super(
      'The transaction ended before its function did: something inside has sent COMMIT or ROLLBACK. A part of the work may be kept. Return to commit, throw to roll back.',
      options,
    )
  }
}

/**
 * The answer to COMMIT was lost: the work is all there or not at all.
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
      'The connection was lost after COMMIT (or a statement that commits by itself) was sent and before its answer: the work is either all there or not at all.',
    remedy:
      'Look whether it is there before doing it again, or make it idempotent with a key. It is never retried for you.',
  }

  constructor(
    /** The statement whose answer was lost. */
    readonly statement: string,
    options?: DibsErrorOptions,
  ) {
    super(
      `The connection was lost after ${statement} was sent and before its answer came, so it is unknown whether it took effect. Look before you do it again.`,
      options,
    )
  }
}
