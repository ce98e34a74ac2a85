import type { Claim } from '../claims/claim.js'
import { HeldClaim } from '../claims/held-claim.js'
import { WithoutWrites } from '../claims/once-joined.js'
import { Abandoned } from '../claims/once-leased.js'
import type { AmbiguousVerdict, OnceResult } from '../claims/once-spec.js'
import type { Dibs } from '../dibs.js'
import { InvalidInputError, TransientError } from '../errors.js'
import type { Tx } from '../postgres/executor.js'
import { translateError } from '../postgres/fault.js'
import { withTimeout } from '../postgres/with-timeout.js'
import { Claimed } from './claimed.js'
import { NotKept } from './exchange.js'
import { Refusal } from './explain-error.js'
import type { OwnTransaction, ReadOptions } from './options.js'
import type { StoredResponse } from './response-parts.js'
import { timedOut } from './timed-out.js'
import { UnstorableResponse } from './unstorable-response.js'

/** What a request comes to be known by. */
export interface Address {
  readonly scope: string
  readonly key: string
  readonly fingerprint: unknown
  readonly requestId: string | undefined
}

/** One request that is to be carried out once. */
export interface Work {
  readonly dibs: Dibs
  readonly address: Address
  /** Until the client is answered in any case. */
  readonly leftMs: () => number
  /** Lets the handler go, and makes of its response what is stored. */
  readonly carryOut: (claimed: Claimed<unknown>) => Promise<StoredResponse>
}

/** How long after its deadline a transaction of ours may take to end. */
const GRACE_MS = 2_000

/** In a transaction of ours, which ends at its deadline whatever the handler does. */
export function carryOutJoined<R>(
  { dibs, address, leftMs, carryOut }: Work,
  { waitMs, keepMs, keepsWrites }: ReadOptions<R>,
): Promise<OnceResult<unknown>> {
  const spec = { ...address, waitMs, keepMs, deadlineMs: Math.max(1, Math.floor(leftMs())) }
  const running = dibs.onceDetailed(spec, async (tx): Promise<unknown> => {
    const stored = await carryOut(new Claimed(address.key, { tx }))
    return keepsWrites(stored.status) ? stored : new WithoutWrites(stored)
  })
  // It may be committed by then, and still be busy with what was left for afterwards.
  return withTimeout(running, leftMs() + GRACE_MS, () => {
    throw timedOut('unknown')
  })
}

/**
 * Runs in a transaction of the application's own library. It is not ended while the handler may be using it, since its connection would be
 * somebody else's then; one that ends too late is rolled back.
 */
export async function runInside(
  transaction: OwnTransaction,
  work: (handle: unknown, tx: Tx) => Promise<void>,
  leftMs: () => number,
): Promise<void> {
  let hasBegun = false
  const run = (tx: Tx, handle: unknown): Promise<void> => {
    hasBegun = true
    const working = work(handle, tx).then(() => {
      if (leftMs() === 0) throw timedOut('not done')
    })
    // A `transaction` that does not wait for this promise must not end the process by its rejection.
    working.catch(() => {})
    return working
  }
  const start = async (): Promise<unknown> => transaction(run)
  const running = start().catch((error: unknown) => {
    if (hasBegun) throw error
    // The library could not begin: its errors become those that the middleware explains to clients.
    throw translateError(error)
  })
  await withTimeout(running, leftMs(), () => {
    throw timedOut('unknown')
  })
}

/** In a transaction of the application's own library. */
export async function carryOutInside<R>(
  { dibs, address, leftMs, carryOut }: Work,
  { waitMs, keepMs, keepsWrites }: ReadOptions<R>,
  transaction: OwnTransaction,
): Promise<OnceResult<unknown>> {
  let result: OnceResult<unknown> | undefined
  const spec = { ...address, waitMs, keepMs }
  const claim = async (handle: unknown, tx: Tx): Promise<void> => {
    result = await dibs.onceDetailed({ ...spec, tx }, async (): Promise<unknown> => {
      await tx.query('savepoint dibs_request')
      const stored = await carryOut(new Claimed(address.key, { tx: handle, transaction }))
      if (!keepsWrites(stored.status)) await tx.query('rollback to savepoint dibs_request')
      await tx.query('release savepoint dibs_request')
      return stored
    })
  }
  await runInside(transaction, claim, leftMs)
  if (!result)
    throw new InvalidInputError('transaction', 'must call the function that it is given, and wait for it')
  if (!result.replayed)
    await withTimeout(assertCommitted(dibs, address, result.id), leftMs() + GRACE_MS, () => {
      throw unknownCommit()
    })
  return result
}

/**
 * A transaction that has failed answers COMMIT with ROLLBACK, and not every library looks: a statement that a handler sends after
 * its response can make it fail. What the client is told must be there.
 */
async function assertCommitted(dibs: Dibs, { scope, key }: Address, id: string): Promise<void> {
  const claim = await dibs.claims.get({ scope, key }).catch((error) => {
    throw unknownCommit(error)
  })
  if (claim?.status === 'active' && claim.id === id) return
  throw new Refusal({
    name: 'failed',
    state: 'unknown',
    detail: 'It was not committed. Repeat the request, with the same key.',
    cause: new InvalidInputError(
      'transaction',
      'has resolved, and nothing was committed: a statement in it has failed',
    ),
  })
}

const unknownCommit = (cause?: unknown): Refusal =>
  new Refusal({
    name: 'unknown',
    state: 'unknown',
    detail: 'The request may have been carried out. Repeat it, with the same key, to learn what came of it.',
    retryAfterMs: 1_000,
    cause,
  })

/** Under a lease: the handler may go on after the client was answered, until the lease has run out. */
export function carryOutLeased<R>(
  { dibs, address, leftMs, carryOut }: Work,
  { waitMs, keepMs, leaseMs, maxAttempts, deadlineMs, onAmbiguous }: ReadOptions<R>,
  means: {
    readonly lookInto: (claim: Claim) => Promise<AmbiguousVerdict>
    /** What is stored of work that is done, and whose response cannot be kept. */
    readonly unkept: (error: UnstorableResponse) => StoredResponse
  },
): Promise<OnceResult<unknown>> {
  let held: Claim | undefined
  const spec = { ...address, mode: 'leased', waitMs, keepMs, leaseMs, maxAttempts } as const
  const running = dibs.onceDetailed(
    {
      ...spec,
      onAmbiguous:
        typeof onAmbiguous === 'function'
          ? (claim) =>
              withTimeout(means.lookInto(claim), deadlineMs, () => {
                throw new Error('`onAmbiguous` does not answer.')
              })
          : onAmbiguous,
    },
    async (claim): Promise<unknown> => {
      held = claim
      const carried = carryOut(new Claimed(address.key, { claim }))
      try {
        return await withTimeout(carried, deadlineMs + leaseMs, () => {
          throw new Abandoned('The handler does not answer.')
        })
      } catch (error) {
        if (error instanceof UnstorableResponse && error.isOutcome) return means.unkept(error)
        // It was refused before anything happened, so that also one who holds what is ambiguous may run it again.
        if (error instanceof NotKept && error.parts.status < 500)
          throw new TransientError(error.message, { cause: error })
        throw error
      }
    },
  )
  return withTimeout(running, leftMs(), () => {
    // From now on its lease runs out; its outcome is stored if it comes before another has taken over.
    if (held instanceof HeldClaim) held.stop()
    throw timedOut('running')
  })
}
