import { ClosedError } from '../errors.js'
import { retry } from '../postgres/retry.js'
import type { LockContext, LockIdentity } from './lock-context.js'
import { lockTopic } from './lock-notifications.js'
import { inspectLock, releaseLock } from './lock-statements.js'

/** These statements wait only a moment for a row, so a longer silence is that of the network. */
const ANSWER = { deadlineMs: 5_000, duringClose: true }

/** A request for a lock, by the holder that all its statements name. */
export type LockRequestId = Pick<LockIdentity, 'name' | 'holder'>

/** Releases a lock that its caller no longer needs. If that fails, the lease runs out. */
export async function releaseUnwantedLock(
  { database, wakeups }: LockContext,
  { name, holder }: LockRequestId,
  { permit, fence }: Pick<LockIdentity, 'permit' | 'fence'>,
): Promise<void> {
  const values = [name, String(permit), holder, String(fence), '1000']
  const [row] = await database.send(releaseLock, values, ANSWER)
  if (JSON.parse(`${row?.result}`).isWanted) wakeups.notify(lockTopic(name))
}

/**
 * Releases a lock that may have been granted to a call whose caller got an error. Tries until the server answers, or the lease is over: other callers would
 * wait for the whole lease. Never rejects.
 */
export async function releaseOrphanedLock(
  context: LockContext,
  request: LockRequestId,
  leaseMs: number,
): Promise<void> {
  const { database } = context
  const release = async (): Promise<void> => {
    const rows = await database.send(inspectLock, [request.name], ANSWER)
    const own = rows.find(({ holder }) => holder === request.holder)
    if (!own) return
    const grant = { permit: Number(own.permit), fence: Number(own.fence) }
    await releaseUnwantedLock(context, request, grant)
  }
  // `close` waits for the first try, or for another that has begun, and lets no other begin.
  await retry((attempt) => database.work(release, attempt === 1), {
    isRetryable: (error) => !(error instanceof ClosedError),
    ...{ baseMs: 100, maxMs: 5_000, deadlineAt: performance.now() + leaseMs, ref: false },
  }).catch(() => {})
}
