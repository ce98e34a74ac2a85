import { InvalidInputError, NestedTransactionError } from '../errors.js'
import { checkFunction } from './check-function.js'
import { checkOptions } from './check-options.js'
import { backOff, type RetryOptions, readLimits } from './conflict-retry.js'
import type { Checkout, Connections } from './connections.js'
import { emit } from './events.js'
import { isConflict, isUnusable, readFault, translateError } from './fault.js'
import { showGiven } from './name-given.js'
import { isInside, OpenTransaction } from './open-transaction.js'
import { isRepeated } from './retry-scope.js'
import { forgetNames } from './session.js'
import type { TextRow } from './text-values.js'
import { control, type Part, queryTogether } from './together.js'
import type { FramedTransaction } from './transaction-handle.js'
import type { Isolation, Limits, Transaction } from './transaction-types.js'

export interface TransactionOptions extends RetryOptions {
  /** The isolation level. Default `read committed`, whatever the default of the server is. */
  readonly isolation?: Isolation | undefined
  /**
   * The deadline of the whole call. After it no attempt starts and nothing is sent, not even COMMIT; one second later the call ends in any case. The server
   * cancels a statement that has run for this long. Default 30,000; `Infinity` for none.
   */
  readonly deadlineMs?: number | undefined
  /** The maximum number of runs if conflicts occur. Default 10, and 1 inside `retryOnConflict`. 1: never repeat. */
  readonly maxAttempts?: number | undefined
}

const beginAt = (isolation: Isolation) => control(`begin isolation level ${isolation} read write`)

/** BEGIN always names the level, because Dibs cannot rely on the default of the server. */
const BEGIN: Readonly<Record<Isolation, Part>> = {
  'read committed': beginAt('read committed'),
  'repeatable read': beginAt('repeatable read'),
  serializable: beginAt('serializable'),
}

const levels = Object.keys(BEGIN)

/** How long after the deadline the cancelation by the server may take to arrive. */
const GRACE_MS = 1_000

/**
 * Runs `fn` in a transaction, and again from its start after a conflict.
 *
 * Only conflicts are repeated: 40001, 40P01 and `ConflictError`. After these, nothing was kept, and the same call can succeed. Neither is known after a lost
 * COMMIT.
 */
export async function runTransaction<T>(
  connections: Connections,
  fn: (tx: Transaction) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  checkFunction('fn', fn)
  checkOptions(options, ['isolation', 'deadlineMs', 'maxAttempts'])
  if (isInside(connections)) throw new NestedTransactionError()
  const isRepeatedAround = options.maxAttempts === undefined && isRepeated()
  return await repeatTransaction(connections, fn, options, { isRepeatedAround })
}

/** Options that only other functions of Dibs use. */
export interface Framing {
  /** Returns statements that are sent in one message with BEGIN. Called for each attempt, just before BEGIN. */
  readonly opening?: (() => readonly Part[]) | undefined
  /** True for a part of work that began before `close`. The part goes on while `close` waits for that work. */
  readonly isPart?: boolean | undefined
  /**
   * True if the surrounding code runs again after a conflict, together with its reads. Repeating the transaction alone would be in vain, and attempts would
   * multiply.
   */
  readonly isRepeatedAround?: boolean | undefined
  /** How long to wait for the first connection, outside of `deadlineMs`: the deadline starts when the connection is there. */
  readonly connectMs?: number | undefined
}

/** Runs `fn` like `runTransaction`, but without the check for a surrounding transaction: for transactions of Dibs that run separately on purpose. */
export async function repeatTransaction<T>(
  connections: Connections,
  fn: (tx: FramedTransaction) => Promise<T>,
  options: TransactionOptions = {},
  { opening, isPart, isRepeatedAround, connectMs }: Framing = {},
): Promise<T> {
  let limits = readOptions(options)
  const { origin } = connections
  return await connections.work(async () => {
    let first: Checkout | undefined
    if (connectMs !== undefined) {
      first = await connections.take(connectMs)
      limits = readOptions(options)
    }
    for (let attempt = 1; ; attempt++) {
      try {
        const checkout = first ?? (await connections.take(limits.deadlineAt - performance.now()))
        first = undefined
        return await runOnce(connections, checkout, fn, limits, attempt, opening)
      } catch (error) {
        if (!isConflict(error)) throw error
        if (isRepeatedAround) throw error // the surrounding code repeats, so this is no `gave-up`
        await backOff(limits, attempt, error, {
          onRetry: (delayMs) => emit('dibs:transaction.retried', { ...origin, attempt, delayMs, error }),
          onGiveUp: (elapsedMs) =>
            emit('dibs:transaction.gave-up', { ...origin, attempts: attempt, elapsedMs, error }),
        })
      }
    }
  }, isPart)
}

function readOptions({ isolation = 'read committed', ...limits }: TransactionOptions): Limits {
  if (!levels.includes(isolation)) {
    throw new InvalidInputError(
      'isolation',
      `must be one of ${levels.join(', ')}, not ${showGiven(isolation)}`,
    )
  }
  return { isolation, ...readLimits(limits) }
}

async function runOnce<T>(
  connections: Connections,
  checkout: Checkout,
  fn: (tx: FramedTransaction) => Promise<T>,
  limits: Limits,
  attempt: number,
  opening: Framing['opening'],
): Promise<T> {
  checkout.bound(limits.deadlineAt - performance.now() + GRACE_MS)
  const opened = await begin(checkout, beginning(limits, connections), opening, connections.prepared)
  const tx = new OpenTransaction(checkout, connections, limits, attempt, opened)
  let value: T
  try {
    // A function that waits for something else is abandoned after the deadline.
    value = await checkout.unlessCut(tx.run(fn))
    if (!tx.isLeft) await tx.commit()
  } catch (error) {
    let verdict: unknown
    try {
      verdict = tx.judge(error)
    } finally {
      await checkout.rollback() // also if `judge` throws, as it may for an error with a throwing getter
    }
    throw verdict
  } finally {
    tx.stopWatching()
  }
  if (tx.isLeft) {
    connections.finish(checkout.rollback())
    return value
  }
  checkout.release()
  await tx.runAfterCommit()
  return value
}

async function begin(
  checkout: Checkout,
  beginning: readonly Part[],
  opening: Framing['opening'],
  prepared: boolean,
): Promise<readonly TextRow[]> {
  try {
    // BEGIN alone is faster as a simple query.
    if (!opening) return (await queryTogether(checkout.client, beginning, false)).rows
    return await open(checkout, [...beginning, ...opening()], prepared)
  } catch (error) {
    if (opening === undefined || readFault(error)?.sqlState === undefined || isUnusable(error))
      checkout.discard(error)
    else await checkout.rollback() // the server refused a statement after BEGIN had succeeded
    throw translateError(error)
  }
}

/** Sends again if the server has forgotten the names of prepared statements. In that case nothing was done. */
async function open(
  checkout: Checkout,
  parts: readonly Part[],
  prepared: boolean,
): Promise<readonly TextRow[]> {
  const ask = async () => (await queryTogether(checkout.client, parts, prepared)).rows
  try {
    return await ask()
  } catch (error) {
    if (!forgetNames(checkout.client, error) || !(await checkout.answers('rollback'))) throw error
    return await ask()
  }
}

/** Returns BEGIN and its settings, for one message and one round trip. */
function beginning({ isolation, deadlineAt }: Limits, { statementTimeoutMs }: Connections): readonly Part[] {
  const begin = BEGIN[isolation]
  const leftMs = Math.ceil(Math.max(1, deadlineAt - performance.now()))
  // Lowers the session's own timeout, never raises it. PostgreSQL takes at most 2^31 - 1.
  const lowers = leftMs < 2 ** 31 && (statementTimeoutMs === 0 || leftMs < statementTimeoutMs)
  return lowers ? [begin, `set local statement_timeout = ${leftMs}`] : [begin]
}
