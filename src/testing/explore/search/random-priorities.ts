import type { ChooseUnit } from '../schedule/schedule-run.js'

/** The number of steps that a race may need in a certain order, for the probability that a report states. */
export const RACE_DEPTH = 3

/**
 * Chooses units by random priorities (PCT). At random steps, the unit with the highest priority gets the lowest. A race that
 * needs `RACE_DEPTH` steps in a certain order then shows with a known probability in each run. A random choice at each step
 * has no such guarantee. See Burckhardt and others, "A randomized scheduler with probabilistic guarantees of finding bugs",
 * 2010.
 */
export function randomPriorities(steps: number, random: () => number): ChooseUnit {
  const priority = new Map<string, number>()
  const changes = Array.from({ length: RACE_DEPTH - 1 }, () => Math.floor(random() * steps))
  return (options, done) => {
    const rank = (unit: string): number => priority.get(unit) as number
    for (const unit of options) if (!priority.has(unit)) priority.set(unit, RACE_DEPTH + random())
    const best = (): string => options.reduce((a, b) => (rank(b) > rank(a) ? b : a))
    for (const [i, at] of changes.entries())
      if (at === done.length) priority.set(best(), RACE_DEPTH - 1 - i - 1)
    return best()
  }
}

/** The least probability that `runs` schedules show a race of depth `RACE_DEPTH`. */
export function detectionProbability(units: number, steps: number, runs: number): number {
  const perRun = 1 / (units * steps ** (RACE_DEPTH - 1))
  return 1 - (1 - perRun) ** runs
}
