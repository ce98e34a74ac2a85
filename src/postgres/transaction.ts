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
  /** Default `read committed`, whatever the server's own default is. */
  readonly isolation?: Isolation | undefined
  /**
   * After this no further attempt starts and nothing is sent, COMMIT included, and a second later the call ends in
   * any case. The server cancels a statement that has run for this long by itself. Default 30,000; `Infinity` for
   * none.
   */
  readonly deadlineMs?: number | undefined
  /** How often to run in all when conflicts occur. Default 10, inside `retryOnConflict` 1; 1 never repeats. */
  readonly maxAttempts?: number | undefined
}

const beginAt = (isolation: Isolation) => control(`begin isolation level ${isolation} read write`)

/** The level is always named, since the server's default is not ours to rely on. */
const BEGIN: Readonly<Record<Isolation, Part>> = {
  'read committed': beginAt('read committed'),
  'repeatable read': beginAt('repeatable read'),
  serializable: beginAt('serializable'),
}

const levels = Object.keys(BEGIN)

/** How long after the deadline the server's own cancellation may take to arrive. */
const GRACE_MS = 1_000

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
  checkFunction('fn', fn)
  checkOptions(options, ['isolation', 'deadlineMs', 'maxAttempts'])
  if (isInside(connections)) throw new NestedTransactionError()
  const isRepeatedAround = options.maxAttempts === undefined && isRepeated()
  return await repeatTransaction(connections, fn, options, { isRepeatedAround })
}

/** How our own functions use a transaction. */
export interface Framing {
  /** Sent in one message with BEGIN, as it is to be said at that moment. */
  readonly opening?: (() => readonly Part[]) | undefined
  /** Part of work that was let in before: it goes on while `close` waits for it. */
  readonly isPart?: boolean | undefined
  /** What surrounds it runs again after a conflict, with what was read there: alone it would repeat in vain, and attempts would multiply. */
  readonly isRepeatedAround?: boolean | undefined
  /** Waits this long for the first connection, outside of `deadlineMs`: the deadline starts when the connection is there. */
  readonly connectMs?: number | undefined
}

/** The same without a look at what surrounds it: for our own statements, which are meant to run apart. */
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
        if (isRepeatedAround) throw error // not the end of it, so nobody is told that it is
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
    // A function that waits elsewhere is left to itself when its time is over.
    value = await checkout.unlessCut(tx.run(fn))
    if (!tx.isLeft) await tx.commit()
  } catch (error) {
    let verdict: unknown
    try {
      verdict = tx.judge(error)
    } finally {
      await checkout.rollback() // also after what throws when it is asked what it is
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
    // As text, BEGIN alone is the faster one.
    if (!opening) return (await queryTogether(checkout.client, beginning, false)).rows
    return await open(checkout, [...beginning, ...opening()], prepared)
  } catch (error) {
    if (opening === undefined || readFault(error)?.sqlState === undefined || isUnusable(error))
      checkout.discard(error)
    else await checkout.rollback() // the statement was refused, inside a transaction that has begun
    throw translateError(error)
  }
}

/** Once more if the server has forgotten the names of our statements: nothing was done then. */
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

/** One message, one round trip. */
function beginning({ isolation, deadlineAt }: Limits, { statementTimeoutMs }: Connections): readonly Part[] {
  const begin = BEGIN[isolation]
  const leftMs = Math.ceil(Math.max(1, deadlineAt - performance.now()))
  // Lowers the session's own timeout, never raises it. PostgreSQL takes at most 2^31 - 1.
  const lowers = leftMs < 2 ** 31 && (statementTimeoutMs === 0 || leftMs < statementTimeoutMs)
  return lowers ? [begin, `set local statement_timeout = ${leftMs}`] : [begin]
}
