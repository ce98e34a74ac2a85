import { MAX_TIMER_MS } from '../postgres/check-duration.js'
import { Refusal } from './explain-error.js'
import type { OperationState } from './problem.js'

/** What is awaited, or what `late` gives if it does not come in time; that may be an error. */
export async function inTime<T>(running: Promise<T>, ms: number, late: () => Error): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const ended = new Promise<never>((_, reject) => {
    const end = (): void => reject(late())
    // In a process that stood still the answer may be there, and timers come before it is read.
    timer = setTimeout(() => setImmediate(end), Math.min(ms, MAX_TIMER_MS))
  })
  try {
    return await Promise.race([running, ended])
  } finally {
    clearTimeout(timer)
  }
}

/** A client is not kept waiting any longer. */
export const timedOut = (state: OperationState): Refusal =>
  new Refusal({
    name: 'timedOut',
    state,
    detail: 'It is not done yet. Repeat the request, with the same key, to learn what came of it.',
    retryAfterMs: 1_000,
  })
