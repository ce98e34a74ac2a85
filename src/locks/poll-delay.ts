/** The refusal of a lock that another holds. `guarded`: a guarded transaction of the last holder is still open. `busy`: another call has locked the row. */
export interface LockRefusal {
  readonly state: 'held' | 'guarded' | 'busy'
  readonly holder?: string | null
  readonly leftMs?: number | null
  /** When the lease ends, in microseconds since 1970. */
  readonly leaseUntil?: number | null
}

/** The longest pause between two polls. A notification may be lost, and a holder that dies sends none. */
export const POLL_MS = 500

/** Guarded transactions are short. */
const GUARDED_MS = 50

/** How long a poll marks the lock as waited for. The next poll renews the mark before half of this has passed. */
export const waitMarkMs = (pollMs: number): number => 3 * pollMs

/** The pause before the next poll: at most `maxMs`, and random, because calls that wait for the same lease must not all poll at its end. */
export function pollDelayMs(
  refusal: LockRefusal | undefined,
  poll: number,
  busyPolls: number,
  maxMs = POLL_MS,
): number {
  const { state, leftMs } = refusal ?? {}
  if (state === 'busy') return Math.min(maxMs, (2 + Math.random() * 20) * 2 ** Math.max(0, busyPolls - 3))
  const pollMs = state === 'guarded' ? GUARDED_MS : Math.min(maxMs, 50 * 2 ** Math.min(poll, 10))
  const jitteredMs = pollMs * (0.5 + Math.random() / 2)
  // `leftMs` is in whole milliseconds, and 0 in the last one.
  return typeof leftMs === 'number' ? Math.min(jitteredMs, leftMs + 1 + Math.random() * 5) : jitteredMs
}
