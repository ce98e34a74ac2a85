import { DEPTH } from '../search/random-order.js'
import type { ExploreReport } from './report.js'

const count = (n: number, thing: string): string => `${n.toLocaleString('en')} ${thing}${n === 1 ? '' : 's'}`

/** What a report says in one sentence. "All" stands only where all is true. */
export function summarize(report: Omit<ExploreReport, 'summary' | 'race'>): string {
  const { mode, schedules, isExhaustive, random, actors, steps, isolation, seconds } = report
  const scope = `(${count(actors.length, 'actor')}, at most ${count(steps, 'step')}, ${isolation.toUpperCase()}, ${seconds.toFixed(1)} s)`
  if (mode !== 'search') return `No violation in the one schedule that was asked for ${scope}.`
  if (isExhaustive) return `No violation in all ${count(schedules, 'schedule')} ${scope}.`
  const reach = showReach(report)
  if (!random) return `No violation in ${count(schedules, 'schedule')}: ${reach} ${scope}.`
  const percent = (random.probability * 100).toFixed(random.probability > 0.99 ? 2 : 1)
  return (
    `No violation in ${count(schedules, 'schedule')}: ${reach}, and ${count(random.schedules, 'schedule')} in random order ` +
    `(seed ${random.seed}: a race that needs ${DEPTH} steps in a certain order would have shown with at least ${percent} %) ${scope}.`
  )
}

function showReach({ preemptions, isComplete }: Pick<ExploreReport, 'preemptions' | 'isComplete'>): string {
  if (preemptions !== null) return `all with at most ${count(preemptions, 'preemption')}`
  return isComplete ? 'all that were ours to choose, see the notes' : 'not even all without a preemption'
}
