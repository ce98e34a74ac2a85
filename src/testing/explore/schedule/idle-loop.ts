import type { TraceStep } from './trace.js'

/** So often the same, without effect and without anybody else moving, is a loop that waits for somebody. */
const SAME_TIMES = 10
const LONGEST_LOOP = 4

/**
 * Who asks the same again and again, gets the same answer and changes nothing: it waits for somebody else, who must be let
 * go for it to end. Without this a loop that polls would be run for ever. Orders in which it goes on asking are left out.
 */
export function findIdleLoop(
  options: readonly string[],
  steps: readonly TraceStep[],
  nextOf: (unit: string) => string,
): string | undefined {
  const last = steps.at(-1)?.unit
  if (last === undefined || options.length < 2 || !options.includes(last)) return undefined
  const next = nextOf(last)
  for (let length = 1; length <= LONGEST_LOOP; length++) if (isLoop(last, steps, length, next)) return last
  return undefined
}

function isLoop(unit: string, steps: readonly TraceStep[], length: number, next: string): boolean {
  const recent = steps.slice(-length * SAME_TIMES)
  if (recent.length < length * SAME_TIMES || recent[0]?.statement !== next) return false
  return recent.every((step, i) => {
    const model = recent[i % length] as TraceStep
    return step.unit === unit && !hasWritten(step) && sign(step) === sign(model)
  })
}

const sign = ({ statement, values, effect }: TraceStep): string => JSON.stringify([statement, values, effect])

const hasWritten = ({ effect }: TraceStep): boolean =>
  effect.kind === 'done' && /^(?:INSERT \d+|UPDATE|DELETE|MERGE|COPY) [1-9]/.test(effect.result.tag)
