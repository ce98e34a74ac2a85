import { NestedTransactionError } from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import { optionTable } from '../options/option-table.js'
import { oneOf } from '../options/value-options.js'
import type { Checkout } from './checkout.js'
import { conflictPolicy, limitsOf, type RetryOptions, retryOptions } from './conflict-policy.js'
import type { Connections } from './connections.js'
import { emit } from './events.js'
import { isUnusable, readFault, translateError } from './fault.js'
import { OpenTransaction } from './open-transaction.js'
import { forgetNames } from './pg-query.js'
import { controlStatement, type Part, queryPipeline } from './pipeline.js'
import { retry } from './retry.js'
import { isRepeated } from './retry-on-conflict.js'
import type { TextRow } from './text-values.js'
import type { InternalTransaction } from './transaction-handle.js'
import { isInside } from './transaction-scope.js'
import type { Isolation, Limits, Transaction } from './transaction-types.js'

export interface TransactionOptions extends RetryOptions {
  /** The isolation level, whatever the default of the server is. Default `read committed`. */
  readonly isolation?: Isolation | undefined
  /**
   * The deadline of the whole call. After it nothing is sent, not even COMMIT, and one second later the call ends. The server
   * cancels a statement that runs past the deadline. Default 30,000; `Infinity` for none.
   */
  readonly deadlineMs?: number | undefined
  /** The maximum number of runs if conflicts occur. Default 10, and 1 inside `retryOnConflict`. 1: never repeat. */
  readonly maxAttempts?: number | undefined
}

const beginAt = (isolation: Isolation) => controlStatement(`begin isolation level ${isolation} read write`) // guard: transaction.isolation

/** BEGIN always names the level, because Dibs cannot rely on the default of the server. */
const BEGIN: Readonly<Record<Isolation, Part>> = {
  'read committed': beginAt('read committed'),
  'repeatable read': beginAt('repeatable read'),
  serializable: beginAt('serializable'),
}

export const transactionOptions = optionTable<TransactionOptions>()('dibs.transaction', {
  isolation: oneOf(['read committed', 'repeatable read', 'serializable'], { default: 'read committed' }),
  ...retryOptions,
})

/** How long after the deadline the cancelation by the server may take to arrive. */
const GRACE_MS = 1_000

/**
 * Runs `fn` in a transaction, and again from its start after a conflict.
 *
 * Only conflicts are repeated: 40001, 40P01 and `ConflictError`. After these, nothing was kept, and the same call can succeed.
 * Neither is certain after a lost COMMIT.
 */
export async function runTransaction<T>(
  connections: Connections,
  fn: (tx: Transaction) => Promise<T>,
  options?: TransactionOptions,
): Promise<T> {
  checkFunction('fn', fn)
  const checked = transactionOptions.read(options)
  // guard: transaction.nested
  if (isInside(connections)) throw new NestedTransactionError()
  const isRepeatedOutside = options?.maxAttempts === undefined && isRepeated()
  return await repeatTransaction(connections, fn, checked, { isRepeatedOutside })
}

/** Options that only other functions of Dibs use. */
export interface InternalOptions {
  /** Returns statements that are sent in one message with BEGIN. Called for each attempt, just before BEGIN. */
  readonly opening?: (() => readonly Part[]) | undefined
  /** True for a part of work that began before `close`. The part goes on while `close` waits for that work. */
  readonly duringClose?: boolean | undefined
  /**
   * True if the surrounding code runs again after a conflict, together with its reads. Repeating only the transaction
   * would not help, and attempts would multiply.
   */
  readonly isRepeatedOutside?: boolean | undefined
  /** How long to wait for the first connection, outside of `deadlineMs`: the deadline starts when the connection is there. */
  readonly connectMs?: number | undefined
}

/**
 * Runs `fn` like `runTransaction`, without the check for a surrounding transaction. For transactions of Dibs that run
 * separately on purpose.
 */
export async function repeatTransaction<T>(
  connections: Connections,
  fn: (tx: InternalTransaction) => Promise<T>,
  options: TransactionOptions = {},
  { opening, duringClose, isRepeatedOutside, connectMs }: InternalOptions = {},
): Promise<T> {
  let limits = startClock(options)
  const { origin } = connections
  return await connections.work(async () => {
    let first: Checkout | undefined
    if (connectMs !== undefined) {
      first = await connections.take(connectMs)
      limits = startClock(options)
    }
    const run = async (attempt: number): Promise<T> => {
      const checkout = first ?? (await connections.take(limits.deadlineAt - performance.now()))
      first = undefined
      return await runOnce(connections, checkout, fn, limits, attempt, opening)
    }
    // If the surrounding code repeats, a conflict is not the end, and no `gave-up` event is emitted.
    if (isRepeatedOutside) return await run(1) // guard: transaction.retry-inner
    const policy = conflictPolicy(limits, {
      onRetry: (error, attempt, delayMs) =>
        emit('dibs:transaction.retried', { ...origin, attempt, delayMs, error }),
      onGiveUp: (error, attempts, elapsedMs) =>
        emit('dibs:transaction.gave-up', { ...origin, attempts, elapsedMs, error }),
    })
    return await retry(run, policy)
  }, duringClose)
}

function startClock({ isolation = 'read committed', ...limits }: TransactionOptions): Limits {
  return { isolation, ...limitsOf(limits) }
}

async function runOnce<T>(
  connections: Connections,
  checkout: Checkout,
  fn: (tx: InternalTransaction) => Promise<T>,
  limits: Limits,
  attempt: number,
  opening: InternalOptions['opening'],
): Promise<T> {
  checkout.bound(limits.deadlineAt - performance.now() + GRACE_MS) // guard: transaction.silent-network
  const beginRows = await begin(checkout, beginParts(limits, connections), opening, connections.prepared)
  const tx = new OpenTransaction(checkout, connections, limits, attempt, beginRows)
  let value: T
  try {
    // A function that waits for something else is abandoned after the deadline.
    value = await checkout.unlessCut(tx.run(fn))
    if (!tx.isRolledBackAtEnd) await tx.commit()
  } catch (error) {
    let reported: unknown
    try {
      reported = tx.closeAfterError(error)
    } finally {
      await checkout.rollback() // also if `closeAfterError` throws, as it may for an error with a throwing getter
    }
    throw reported
  } finally {
    tx.stopWatching()
  }
  if (tx.isRolledBackAtEnd) {
    connections.finish(checkout.rollback())
    return value
  }
  checkout.release()
  await tx.runAfterCommit()
  return value
}

async function begin(
  checkout: Checkout,
  beginParts: readonly Part[],
  opening: InternalOptions['opening'],
  prepared: boolean,
): Promise<readonly TextRow[]> {
  try {
    // BEGIN alone is faster as a simple query.
    if (!opening) return (await queryPipeline(checkout.client, beginParts, false)).rows
    return await sendOpening(checkout, [...beginParts, ...opening()], prepared)
  } catch (error) {
    if (opening === undefined || readFault(error)?.sqlState === undefined || isUnusable(error))
      checkout.discard(error)
    else await checkout.rollback() // the server refused a statement after BEGIN had succeeded
    throw translateError(error)
  }
}

/** Sends again if the server has forgotten the names of prepared statements. In that case nothing was done. */
async function sendOpening(
  checkout: Checkout,
  parts: readonly Part[],
  prepared: boolean,
): Promise<readonly TextRow[]> {
  const send = async () => (await queryPipeline(checkout.client, parts, prepared)).rows
  try {
    return await send()
  } catch (error) {
    if (!forgetNames(checkout.client, error) || !(await checkout.answers('rollback'))) throw error
    return await send()
  }
}

/** Returns BEGIN and its settings, for one message and one round trip. */
function beginParts({ isolation, deadlineAt }: Limits, { statementTimeoutMs }: Connections): readonly Part[] {
  const begin = BEGIN[isolation]
  const leftMs = Math.ceil(Math.max(1, deadlineAt - performance.now()))
  // Lowers the session's own timeout, never raises it. PostgreSQL takes at most 2^31 - 1.
  const lowers = leftMs < 2 ** 31 && (statementTimeoutMs === 0 || leftMs < statementTimeoutMs) // guard: transaction.statement-deadline
  return lowers ? [begin, `set local statement_timeout = ${leftMs}`] : [begin]
}
