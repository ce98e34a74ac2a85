import { isSameKind, type NewJob } from './new-job.js'

// The topics of notifications between processes. A notification may be lost, so each waiting process polls as well.

/** The topic for jobs of this queue that are ready. */
export const queueTopic = (queue: string): string => `jobs:${queue}`

/** The topic for jobs that were added and are due later. */
export const DUE_TOPIC = 'jobs-due'

/** The topic for running jobs that were canceled: every worker checks its jobs at once. */
export const CANCEL_TOPIC = 'jobs-cancel'

export function topicsOf(jobs: readonly NewJob[]): Set<string> {
  const topics = new Set<string>()
  let last: NewJob | undefined
  for (const job of jobs) {
    if (last && isSameKind(last, job)) continue
    last = job
    const { definition, options } = job
    const { runAt, delayMs = 0 } = options
    if (runAt !== undefined || delayMs > 0) topics.add(DUE_TOPIC)
    // The clock of this process may be wrong, so a job that is due about now has both topics.
    if (delayMs === 0 && (runAt ?? 0) < Date.now() + 1_000) topics.add(queueTopic(definition.queue))
  }
  return topics
}
