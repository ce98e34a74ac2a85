import { actorOf } from '../../../explore/schedule/trace.js'
import type { StatementLine, StoryLine } from '../../story.js'

/** Statements of which nothing new is to be told. */
export interface Folded {
  readonly kind: 'folded'
  readonly who: string
  readonly from: number
  readonly to: number
  /** The first of those in the run without a fault that they are the same as. */
  readonly as: number
}

export type Told = StoryLine | Folded

/** Of statements that went as ever so many are shown before and after those that are folded. */
const KEPT_BEFORE = 1
const KEPT_AFTER = 2
/** Fewer are not worth it. */
const LEAST_FOLDED = 3

/** What a run did, statement by statement. */
export const usualOf = (story: readonly StoryLine[]): readonly string[] =>
  story.flatMap((line) => (line.kind === 'statement' && actorOf(line.who) === 'run' ? [sign(line)] : []))

/** Values and answers count: to see something else may be what goes wrong. */
const sign = ({ who, text, values, effect, waitedFor }: StatementLine): string =>
  JSON.stringify([who.slice(actorOf(who).length), text, values, effect, waitedFor])

/**
 * A story in which long stretches that are the very same as in a run without a fault are folded: so what differs is in sight,
 * and a page has room for more stories.
 */
export function fold(story: readonly StoryLine[], usual: readonly string[]): readonly Told[] {
  const told: Told[] = []
  let stretch: StatementLine[] = []
  /** Where in the usual run the stretch goes on. */
  let next = 0
  const end = (): void => {
    const hidden = stretch.slice(KEPT_BEFORE, -KEPT_AFTER)
    const [first, last] = [hidden[0], hidden.at(-1)]
    if (first && last && hidden.length >= LEAST_FOLDED) {
      const as = next - stretch.length + KEPT_BEFORE + 1
      const folded = { kind: 'folded', who: first.who, from: first.number, to: last.number, as } as const
      told.push(...stretch.slice(0, KEPT_BEFORE), folded, ...stretch.slice(-KEPT_AFTER))
    } else told.push(...stretch)
    stretch = []
  }
  for (const line of story) {
    const signed = line.kind === 'statement' ? sign(line) : ''
    const before = stretch.at(-1)
    const goesOn = before && 'who' in line && actorOf(line.who) === actorOf(before.who)
    if (before && !(goesOn && usual[next] === signed)) end()
    if (line.kind === 'event' || !usual.includes(signed)) told.push(line)
    else {
      if (stretch.length === 0)
        next = usual[line.number - 1] === signed ? line.number - 1 : usual.indexOf(signed)
      stretch.push(line)
      next++
    }
  }
  end()
  return told
}
