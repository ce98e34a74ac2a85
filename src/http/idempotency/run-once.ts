import type { Claim } from '../../claims/claim.js'
import { HeldClaim } from '../../claims/held-claim.js'
import { Abandoned } from '../../claims/leased-run.js'
import type { AmbiguousVerdict, OnceResult } from '../../claims/once/once-spec.js'
import { WithoutWrites } from '../../claims/own-transaction-run.js'
import type { Dibs } from '../../dibs.js'
import { InvalidInputError, TransientError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { translateError } from '../../postgres/fault.js'
import { withTimeout } from '../../postgres/with-timeout.js'
import type { OwnTransaction } from './idempotency-options.js'
import type { ReadIdempotencyOptions } from './read-idempotency-options.js'
import { Refusal, timedOut } from './refusals.js'
import { Claimed } from './request-claim.js'
import type { RequestIdentity } from './request-identity.js'
import type { StoredResponse } from './response-parts.js'
import { ResponseNotStored } from './response-store.js'
import { UnstorableResponseError } from './unstorable-response-error.js'

/** One request whose handler must run once. */
export interface OnceRequest {
  readonly dibs: Dibs
  readonly identity: RequestIdentity
  /** How long the client still waits. */
  readonly leftMs: () => number
  /** Runs the handler, and makes of its response what is stored. */
  readonly runHandler: (claimed: Claimed<unknown>) => Promise<StoredResponse>
}

/** How long after its deadline a transaction of Dibs may take to end. */
const GRACE_MS = 2_000

/** Runs the handler in a transaction of Dibs, which ends at its deadline even if the handler goes on. */
export function runJoined<R>(
  { dibs, identity, leftMs, runHandler }: OnceRequest,
  { waitMs, keepMs, keepsWrites }: ReadIdempotencyOptions<R>,
): Promise<OnceResult<unknown>> {
  const spec = { ...identity, waitMs, keepMs, deadlineMs: Math.max(1, Math.floor(leftMs())) }
  const running = dibs.onceDetailed(spec, async (tx): Promise<unknown> => {
    const stored = await runHandler(new Claimed(identity.key, { tx }))
    return keepsWrites(stored.status) ? stored : new WithoutWrites(stored)
  })
  // The transaction may have committed by then, so the state is unknown.
  return withTimeout(running, leftMs() + GRACE_MS, () => {
    throw timedOut('unknown')
  })
}

/**
 * Runs `work` in a transaction of the application's own library. A timeout does not end that transaction, because the handler may still use its connection,
 * which may belong to another request by then. Instead, a transaction that ends too late is rolled back.
 */
export async function runInOwnTransaction(
  transaction: OwnTransaction,
  work: (handle: unknown, tx: Tx) => Promise<void>,
  leftMs: () => number,
): Promise<void> {
  let hasBegun = false
  const run = (tx: Tx, handle: unknown): Promise<void> => {
    hasBegun = true
    const working = work(handle, tx).then(() => {
      // guard: http.late-commit
      if (leftMs() === 0) throw timedOut('not done')
    })
    // If `transaction` does not wait for this promise, its rejection must not end the process.
    working.catch(() => {})
    return working
  }
  const start = async (): Promise<unknown> => transaction(run)
  const running = start().catch((error: unknown) => {
    // If the library could not begin, its error is translated, so that the client gets an explanation.
    throw hasBegun ? error : translateError(error)
  })
  await withTimeout(running, leftMs(), () => {
    throw timedOut('unknown')
  })
}

export const transactionNotCalled = (): InvalidInputError =>
  new InvalidInputError('transaction', 'must call the function that it gets, and wait for it')

/** Claims the key and runs the handler in a transaction of the application's own library. */
export async function runOnceInOwnTransaction<R>(
  { dibs, identity, leftMs, runHandler }: OnceRequest,
  { waitMs, keepMs, keepsWrites }: ReadIdempotencyOptions<R>,
  transaction: OwnTransaction,
): Promise<OnceResult<unknown>> {
  let result: OnceResult<unknown> | undefined
  const claim = async (handle: unknown, tx: Tx): Promise<void> => {
    result = await dibs.onceDetailed({ ...identity, waitMs, keepMs, tx }, async (): Promise<unknown> => {
      await tx.query('savepoint dibs_request')
      const stored = await runHandler(new Claimed(identity.key, { tx: handle, transaction }))
      if (!keepsWrites(stored.status)) await tx.query('rollback to savepoint dibs_request')
      await tx.query('release savepoint dibs_request')
      return stored
    })
  }
  await runInOwnTransaction(transaction, claim, leftMs)
  if (!result) throw transactionNotCalled()
  if (!result.replayed)
    await withTimeout(assertCommitted(dibs, identity, result.id), leftMs() + GRACE_MS, () => {
      throw unknownCommit()
    })
  return result
}

/**
 * Checks that the claim is stored. After a failed statement, PostgreSQL answers COMMIT with ROLLBACK, and not every library notices. Such a statement may
 * even follow the handler's response.
 */
async function assertCommitted(dibs: Dibs, { scope, key }: RequestIdentity, id: string): Promise<void> {
  const claim = await dibs.claims.get({ scope, key }).catch((error) => {
    throw unknownCommit(error)
  })
  if (claim?.status === 'active' && claim.id === id) return
  throw new Refusal({
    name: 'failed',
    state: 'unknown',
    detail: 'The request was not committed. Repeat it with the same key.',
    cause: new InvalidInputError(
      'transaction',
      'has resolved, but nothing was committed: a statement of this transaction has failed',
    ),
  })
}

const unknownCommit = (cause?: unknown): Refusal =>
  new Refusal({
    name: 'unknown',
    state: 'unknown',
    detail: 'The request may have been carried out. Repeat it with the same key to learn its outcome.',
    retryAfterMs: 1_000,
    cause,
  })

/** Runs the handler under a lease. The handler may go on after the client got its response, until the lease expires. */
export function runLeased<R>(
  { dibs, identity, leftMs, runHandler }: OnceRequest,
  { waitMs, keepMs, leaseMs, maxAttempts, deadlineMs, onAmbiguous }: ReadIdempotencyOptions<R>,
  callbacks: {
    readonly resolveAmbiguous: (claim: Claim) => Promise<AmbiguousVerdict>
    /** Returns what is stored if the work is done but its response cannot be stored. */
    readonly storeInstead: (error: UnstorableResponseError) => StoredResponse
  },
): Promise<OnceResult<unknown>> {
  let held: Claim | undefined
  const resolveAmbiguous = (claim: Claim): Promise<AmbiguousVerdict> =>
    withTimeout(callbacks.resolveAmbiguous(claim), deadlineMs, () => {
      throw new Error(`\`onAmbiguous\` has not answered within ${deadlineMs} ms.`)
    })
  const running = dibs.onceDetailed(
    {
      ...{ ...identity, mode: 'leased', waitMs, keepMs, leaseMs, maxAttempts },
      onAmbiguous: typeof onAmbiguous === 'function' ? resolveAmbiguous : onAmbiguous,
    },
    async (claim): Promise<unknown> => {
      held = claim
      try {
        return await withTimeout(
          runHandler(new Claimed(identity.key, { claim })),
          deadlineMs + leaseMs,
          () => {
            throw new Abandoned('The handler has not responded in time.')
          },
        )
      } catch (error) {
        // guard: http.leased-unkept
        if (error instanceof UnstorableResponseError && error.isOutcome) return callbacks.storeInstead(error)
        // The handler refused before it did anything, so the claim may run again even with `onAmbiguous: 'hold'`.
        if (error instanceof ResponseNotStored && error.parts.status < 500)
          throw new TransientError(error.message, { cause: error })
        throw error
      }
    },
  )
  // guard: http.leased-bound
  return withTimeout(running, leftMs(), () => {
    // The lease is not renewed any more. The outcome is stored if it comes before another process takes over.
    if (held instanceof HeldClaim) held.stop()
    throw timedOut('running')
  })
}
