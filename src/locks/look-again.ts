/** What is said of a lock that another has. */
export interface Refusal {
  readonly state: 'held' | 'guarded' | 'busy'
  readonly holder?: string | null
  readonly leftMs?: number | null
  /** When the lease ends, in microseconds since 1970. */
  readonly leaseUntil?: number | null
}

/** Those who wait look again after so long at the latest: a hint may be lost, and holders that die send none. */
export const POLL_MS = 500

/** A transaction that guards itself is short. */
const GUARDED_MS = 50

/** For how long whoever looks as often as this marks a lock as waited for: half of it is left at the least, and that is longer than nobody looks. */
export const wantedMs = (pollMs: number): number => 3 * pollMs

/** When to look again, `mostMs` at the latest. Not all at once: those who wait for the same lease would all come at its end. */
export function pauseMs(
  refusal: Refusal | undefined,
  turn: number,
  busyLooks: number,
  mostMs = POLL_MS,
): number {
  const { state, leftMs } = refusal ?? {}
  if (state === 'busy') return Math.min(mostMs, (2 + Math.random() * 20) * 2 ** Math.max(0, busyLooks - 3))
  const pollMs = state === 'guarded' ? GUARDED_MS : Math.min(mostMs, 50 * 2 ** Math.min(turn, 10))
  const jitteredMs = pollMs * (0.5 + Math.random() / 2)
  // Told in whole milliseconds: the last one of a lease is 0.
  return typeof leftMs === 'number' ? Math.min(jitteredMs, leftMs + 1 + Math.random() * 5) : jitteredMs
}
