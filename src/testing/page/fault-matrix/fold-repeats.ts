import type { StatementLine, StoryLine } from '../../crash/story.js'
import { actorOf } from '../../explore/schedule/trace.js'

/** A stretch of statements that the run without a fault also has. */
export interface Folded {
  readonly kind: 'folded'
  readonly who: string
  readonly from: number
  readonly to: number
  /** The number of the first of them in the run without a fault. */
  readonly as: number
}

export type TimelineLine = StoryLine | Folded

/** The number of statements that stay visible before and after a folded stretch. */
const KEPT_BEFORE = 1
const KEPT_AFTER = 2
/** A shorter stretch is not folded. */
const MIN_FOLDED = 3

/** The statements of `run`, each as a string that identifies it. */
export const baselineOf = (story: readonly StoryLine[]): readonly string[] =>
  story.flatMap((line) => (line.kind === 'statement' && actorOf(line.who) === 'run' ? [sign(line)] : []))

/** Includes values and results, because a failure may begin with a read of another value. */
const sign = ({ who, text, values, effect, waitedFor }: StatementLine): string =>
  JSON.stringify([who.slice(actorOf(who).length), text, values, effect, waitedFor])

/** Folds long stretches that are identical in the run without a fault. What differs stays visible, and pages stay small. */
export function foldRepeats(
  story: readonly StoryLine[],
  baseline: readonly string[],
): readonly TimelineLine[] {
  const lines: TimelineLine[] = []
  let stretch: StatementLine[] = []
  /** The position in the run without a fault at which the stretch continues. */
  let next = 0
  const end = (): void => {
    const hidden = stretch.slice(KEPT_BEFORE, -KEPT_AFTER)
    const [first, last] = [hidden[0], hidden.at(-1)]
    if (first && last && hidden.length >= MIN_FOLDED) {
      const as = next - stretch.length + KEPT_BEFORE + 1
      const folded = { kind: 'folded', who: first.who, from: first.number, to: last.number, as } as const
      lines.push(...stretch.slice(0, KEPT_BEFORE), folded, ...stretch.slice(-KEPT_AFTER))
    } else lines.push(...stretch)
    stretch = []
  }
  for (const line of story) {
    const signed = line.kind === 'statement' ? sign(line) : ''
    const before = stretch.at(-1)
    const goesOn = before && 'who' in line && actorOf(line.who) === actorOf(before.who)
    if (before && !(goesOn && baseline[next] === signed)) end()
    if (line.kind === 'event' || !baseline.includes(signed)) lines.push(line)
    else {
      if (stretch.length === 0)
        next = baseline[line.number - 1] === signed ? line.number - 1 : baseline.indexOf(signed)
      stretch.push(line)
      next++
    }
  }
  end()
  return lines
}
