/** Matches `set lock_timeout = …` and `set_config('statement_timeout', …)`, and no query that reads a timeout. */
const SETS_TIMEOUT = /\b(?:lock|statement)_timeout\b['"]?\s*(?:=|,|\bto\b)\s*'?(?:(\d+)\s*(ms|s|min|h)?\b)?/i
const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, min: 60_000, h: 3_600_000 }

/** The timeout in milliseconds that this SQL sets. Undefined if it sets none, or turns the timeout off. */
export function timeoutIn(text: string): number | undefined {
  const [sets, value, unit = 'ms'] = SETS_TIMEOUT.exec(text) ?? []
  if (sets === undefined) return undefined
  // A value that is not in the text, such as a parameter, may be short: 1 ms is the safe assumption.
  return value === undefined ? 1 : Number(value) * (UNITS[unit.toLowerCase()] ?? 1) || undefined
}

export const shorterOf = (a: number | undefined, b: number | undefined): number | undefined =>
  a === undefined || b === undefined ? (a ?? b) : Math.min(a, b)
