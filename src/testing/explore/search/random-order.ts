import type { Choose } from '../schedule/schedule-run.js'

/** Steps that a race may need in a certain order for the stated probability to hold. */
export const DEPTH = 3

/**
 * Priorities at random, and at random moments whoever leads falls behind everybody: a race that needs `DEPTH` steps in a
 * certain order shows with a known probability in each run (Burckhardt and others, "A randomized scheduler with
 * probabilistic guarantees of finding bugs", 2010), which a coin at each step does not have.
 */
export function randomOrder(steps: number, random: () => number): Choose {
  const priority = new Map<string, number>()
  const changes = Array.from({ length: DEPTH - 1 }, () => Math.floor(random() * steps))
  return (options, done) => {
    const rank = (unit: string): number => priority.get(unit) as number
    for (const unit of options) if (!priority.has(unit)) priority.set(unit, DEPTH + random())
    const best = (): string => options.reduce((a, b) => (rank(b) > rank(a) ? b : a))
    for (const [i, at] of changes.entries()) if (at === done.length) priority.set(best(), DEPTH - 1 - i - 1)
    return best()
  }
}

/** The chance that `runs` such runs show a race of that depth, at least. */
export function chanceOf(units: number, steps: number, runs: number): number {
  const each = 1 / (units * steps ** (DEPTH - 1))
  return 1 - (1 - each) ** runs
}
