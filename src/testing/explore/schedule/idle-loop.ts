import type { TraceStep } from './trace.js'

/** How many repetitions without effect, and without a step of another unit, count as a loop that waits for another unit. */
const MIN_REPETITIONS = 10
/** The most statements in one repetition. */
const MAX_LOOP_LENGTH = 4

/**
 * Finds a unit that repeats the same statements, gets the same results and changes nothing. Such a unit polls for something
 * that another unit must do. The search must not choose it now, or the schedule would never end.
 */
export function findIdleLoop(
  options: readonly string[],
  steps: readonly TraceStep[],
  nextOf: (unit: string) => string,
): string | undefined {
  const last = steps.at(-1)?.unit
  if (last === undefined || options.length < 2 || !options.includes(last)) return undefined
  const next = nextOf(last)
  for (let length = 1; length <= MAX_LOOP_LENGTH; length++) if (isLoop(last, steps, length, next)) return last
  return undefined
}

function isLoop(unit: string, steps: readonly TraceStep[], length: number, next: string): boolean {
  const recent = steps.slice(-length * MIN_REPETITIONS)
  if (recent.length < length * MIN_REPETITIONS || recent[0]?.statement !== next) return false
  return recent.every((step, i) => {
    const firstTime = recent[i % length] as TraceStep
    return step.unit === unit && !hasWritten(step) && signatureOf(step) === signatureOf(firstTime)
  })
}

const signatureOf = ({ statement, values, effect }: TraceStep): string =>
  JSON.stringify([statement, values, effect])

const hasWritten = ({ effect }: TraceStep): boolean =>
  effect.kind === 'done' && /^(?:INSERT \d+|UPDATE|DELETE|MERGE|COPY) [1-9]/.test(effect.result.tag)
