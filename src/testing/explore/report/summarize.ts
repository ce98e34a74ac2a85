import { count } from '../../count.js'
import { RACE_DEPTH } from '../search/random-priorities.js'
import type { ExploreReport } from './report.js'

/** The report in one sentence. The word "all" stands only where it is true. */
export function summarize(report: Omit<ExploreReport, 'summary' | 'race'>): string {
  const { mode, schedules, isExhaustive, isComplete, random, actors, steps, isolation, tookMs, reduction } =
    report
  const scope = `(${count(actors.length, 'actor')}, at most ${count(steps, 'step')}, ${isolation.toUpperCase()}, ${(tookMs / 1_000).toFixed(1)} s)`
  if (mode !== 'search') return `No violation in the one schedule that the options name ${scope}.`
  const kind = isComplete && reduction.off === null ? 'distinguishable schedule' : 'schedule'
  if (isExhaustive && schedules === 1) return `No violation in the only ${kind} ${scope}.`
  if (isExhaustive) return `No violation in all ${count(schedules, kind)} ${scope}.`
  const reach = showReach(report)
  if (!random) return `No violation in ${count(schedules, kind)}: ${reach} ${scope}.`
  const percent = (random.probability * 100).toFixed(random.probability > 0.99 ? 2 : 1)
  return (
    `No violation in ${count(schedules, kind)}: ${reach}, and ${count(random.schedules, 'schedule')} in random order ` +
    `(seed ${random.seed}: a race that needs ${RACE_DEPTH} steps in a certain order would have shown with at least ${percent} %) ${scope}.`
  )
}

export function showReach({
  preemptions,
  isComplete,
  reduction,
}: Pick<ExploreReport, 'preemptions' | 'isComplete' | 'reduction'>): string {
  if (preemptions !== null) return `all with at most ${count(preemptions, 'preemption')}`
  if (isComplete) return 'all that were ours to choose, see the notes'
  return reduction.off === null ? 'there are more' : 'not even all without a preemption'
}
