/** Full jitter: anywhere between nothing and the doubled step, so that losers of one race do not meet again. */
export function fullJitterMs(attempt: number, baseMs: number, capMs: number): number {
  return Math.random() * Math.min(capMs, baseMs * 2 ** Math.min(attempt - 1, 30))
}
