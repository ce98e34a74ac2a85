import { showStatement } from '../../explore/report/printout.js'
import { countOf } from '../../gate/result.js'
import type { StatementLine, StoryLine } from '../story.js'
import type { RecoveryPath } from './report.js'

export const FROM_THE_START = 'from the start'
export const NOTHING_TO_DO = 'nothing to do'

/** A statement's effect without the values: `UPDATE 1`. */
export function signEffect({ effect }: StatementLine): string {
  switch (effect.kind) {
    case 'done':
    case 'unseen': {
      const { tag, error } = effect.result
      const { command, count } = countOf(effect.result)
      return error ? `error ${error.code}` : command ? `${command} ${count}` : tag
    }
    case 'injected':
      return `error ${effect.code}`
    default:
      return effect.kind
  }
}

const showLine = (line: StatementLine): string => `${showStatement(line.text, [])} -> ${signEffect(line)}`

/** The statements and the end of each recovery, in order. */
const roundsOf = (story: readonly StoryLine[]): readonly string[][] => {
  const rounds = new Map<string, string[]>()
  for (const line of story) {
    const who = (line.kind === 'statement' ? line.who : (line.ends ?? '')).replace(/\/\d+$/, '')
    if (!who.startsWith('recovery')) continue
    const what = line.kind === 'statement' ? showLine(line) : line.text.slice(who.length + 1)
    rounds.set(who, [...(rounds.get(who) ?? []), what])
  }
  return [...rounds.values()]
}

/** Names the paths of recoveries. Recoveries with the same statements have the same path. */
export class RecoveryPathNames {
  readonly #alone: string
  readonly #after: string
  readonly #seen = new Map<string, { name: string; statements: readonly string[]; points: number }>()
  #letters = 0

  /**
   * @param alone the story of a recovery on fresh data
   * @param after the story of a recovery after a run without a fault
   */
  constructor(alone: readonly StoryLine[], after: readonly StoryLine[]) {
    this.#alone = sign(roundsOf(alone)[0] ?? [])
    this.#after = sign(roundsOf(after)[0] ?? [])
  }

  /**
   * Returns the name of the path, and whether it is unlike a recovery on fresh data and after a run without a fault.
   *
   * @param isPoint true if the story has a fault, so that the path counts it
   */
  read(
    story: readonly StoryLine[],
    isPoint: boolean,
  ): { readonly path: string; readonly entersRecovery: boolean } {
    const rounds = roundsOf(story)
    // A later round that does something has taken over expired work, even if its statements are those on fresh data.
    const [first = sign([]), ...later] = rounds.map(sign)
    const isKnown =
      (first === this.#alone || first === this.#after) && later.every((round) => round === this.#after)
    const name = isKnown ? (first === this.#after ? NOTHING_TO_DO : FROM_THE_START) : undefined
    const key = name ?? JSON.stringify(rounds)
    const path = this.#seen.get(key) ?? {
      name: name ?? letterOf(++this.#letters),
      statements: rounds.flat(),
      points: 0,
    }
    if (isPoint) path.points++
    this.#seen.set(key, path)
    return { path: path.name, entersRecovery: !isKnown }
  }

  get all(): readonly RecoveryPath[] {
    return [...this.#seen.values()]
  }
}

const sign = (round: readonly string[]): string => JSON.stringify(round)

/** A, B, … Z, AA. */
function letterOf(n: number): string {
  const rest = Math.floor((n - 1) / 26)
  return `${rest > 0 ? letterOf(rest) : ''}${String.fromCharCode(65 + ((n - 1) % 26))}`
}
