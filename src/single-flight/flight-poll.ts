import { randomUUID } from 'node:crypto'
import { CommitOutcomeUnknownError } from '../errors.js'
import type { GrantedLock, LockContext } from '../locks/lock-context.js'
import { releaseOrphanedLock } from '../locks/orphaned-lock.js'
import { POLL_MS, waitMarkMs } from '../locks/poll-delay.js'
import { isPassing, retry } from '../postgres/retry.js'
import { restoreShared } from '../postgres/stored-failure.js'
import { THIS_PROCESS } from '../postgres/this-process.js'
import type { Ending, FlightCall } from './flight-call.js'
import { leadLeaseMs, leadLockName } from './flight-spec.js'
import { beginFlight } from './flight-statements.js'
import { readLoaded } from './leased-load.js'

/** The result of the SQL function that begins a flight. */
type BeginResult =
  | {
      readonly state: 'fresh' | 'stale' | 'ended'
      readonly fence: number
      readonly isVoid: boolean
      readonly value: unknown
      readonly lead?: GrantedLock | null
    }
  | { readonly state: 'failed'; readonly fence: number; readonly failure: unknown }
  | { readonly state: 'lead'; readonly lead: GrantedLock }
  | {
      readonly state: 'held' | 'busy'
      readonly after: number
      readonly holder?: string | null
      readonly leftMs?: number | null
      readonly leaseUntil?: number | null
    }

export interface PollResult {
  readonly result: BeginResult
  /** `result` as JSON. */
  readonly text: string
  /** The callers when the poll was sent. Later callers may know of something that the result does not. */
  readonly callers: readonly FlightCall[]
  /** The lowest fence that the waiting callers take. Undefined if no caller waits for a load. */
  readonly after: number | undefined
  /** When the poll was sent, by `performance.now()`. */
  readonly sentAt: number
}

interface PollOptions {
  /** Called after each failure that may pass. `isPersistent`: the database was tried often or long enough for callers that can do without it. */
  readonly onFailure: (error: unknown, isPersistent: boolean) => void
  readonly wait: (ms: number) => Promise<void>
}

/** No caller waits any more. */
class NoCallersError extends Error {}

/** The statement never waits on the server, so a longer silence is that of the network. */
const ANSWER_MS = 5_000

/** A failure is persistent after this many polls, or after this time. */
const MIN_TRIES = 4
const MIN_TRYING_MS = 1_000

/**
 * Reads the value of a key, or acquires the lead to load it, on behalf of all callers. Repeats the statement while the database cannot be reached.
 * Returns undefined if no caller waits any more.
 */
export async function pollFlight(
  context: LockContext,
  key: string,
  calls: ReadonlySet<FlightCall>,
  { onFailure, wait }: PollOptions,
): Promise<PollResult | undefined> {
  const [first] = calls
  if (!first) return undefined
  const holder = `${THIS_PROCESS}/${randomUUID()}`
  const { refreshEarly } = first.spec
  const leaseMs = leadLeaseMs(first.spec)
  const early = refreshEarly === 0 ? 0 : -Math.log(1 - Math.random()) * refreshEarly
  const constants = [holder, String(leaseMs), String(waitMarkMs(POLL_MS)), String(early)]
  const startedAt = performance.now()
  let mayHold = false
  const send = async (): Promise<PollResult> => {
    if (calls.size === 0) throw new NoCallersError()
    const after = lowestFence(calls)
    let callers: readonly FlightCall[] = []
    let sentAt = 0
    const onClient = (): void => {
      callers = [...calls]
      if (callers.length === 0) throw new NoCallersError()
      // The lease starts here, and not while this call waited for a client.
      sentAt = performance.now()
    }
    const values = [key, after === undefined ? null : String(after), ...constants]
    const options = { deadlineMs: ANSWER_MS, duringClose: true, onClient }
    const [row] = await context.database.send(beginFlight, values, options)
    const text = `${row?.result}`
    return { text, result: JSON.parse(text), callers, after, sentAt }
  }
  try {
    return await retry(send, {
      isRetryable: isPassing,
      ...{ baseMs: 20, maxMs: 500, wait },
      onRetry: (error, failures) => {
        mayHold ||= error instanceof CommitOutcomeUnknownError
        onFailure(error, failures >= MIN_TRIES || performance.now() - startedAt >= MIN_TRYING_MS)
      },
    })
  } catch (error) {
    if (mayHold) void releaseOrphanedLock(context, { name: leadLockName(key), holder }, leaseMs)
    if (error instanceof NoCallersError) return undefined
    throw error
  }
}

/** A caller that needs a higher fence than the others is recognized when the result is distributed. */
function lowestFence(calls: ReadonlySet<FlightCall>): number | undefined {
  let lowest: number | undefined
  for (const { after } of calls)
    if (after !== undefined && (lowest === undefined || after < lowest)) lowest = after
  return lowest
}

export const endingWith = (json: string | null, fence?: number): Ending => ({
  how: 'value',
  read: () => readLoaded(json),
  fence,
})

/** How a poll ends the wait of a caller. The first caller gets the value that was parsed for the poll. Each other caller gets a copy. */
export function readPolled({ result, text }: PollResult, isFirst: boolean): Ending {
  if (result.state === 'failed') return { how: 'error', error: restoreShared(result.failure) }
  if (!('value' in result)) return endingWith(null)
  const { fence, isVoid, value } = result
  if (isVoid) return endingWith(null, fence)
  return { how: 'value', read: () => (isFirst ? value : JSON.parse(text).value), fence }
}
