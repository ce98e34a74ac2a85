import { showStatement } from '../../explore/report/printout.js'
import { countOf } from '../../gate/result.js'
import type { StatementLine, StoryLine } from '../story.js'
import type { RecoveryPath } from './report.js'

export const FROM_THE_START = 'from the start'
export const NOTHING_TO_DO = 'nothing to do'

/** What the server answered, without the values: `UPDATE 1`. */
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

/** What each recovery did, one after the other. */
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

/** Gives the same name to recoveries that did the same. */
export class Paths {
  readonly #alone: string
  readonly #after: string
  readonly #seen = new Map<string, { name: string; statements: readonly string[]; points: number }>()
  #letters = 0

  /**
   * @param alone what happens where nothing was run before
   * @param after what happens after a run without a fault
   */
  constructor(alone: readonly StoryLine[], after: readonly StoryLine[]) {
    this.#alone = sign(roundsOf(alone)[0] ?? [])
    this.#after = sign(roundsOf(after)[0] ?? [])
  }

  /**
   * The name of the path, and whether it is one of recovery's own.
   *
   * @param isPoint something was done there, so it counts
   */
  read(
    story: readonly StoryLine[],
    isPoint: boolean,
  ): { readonly path: string; readonly entersRecovery: boolean } {
    const rounds = roundsOf(story)
    // What began only when time had moved on was taken over, even if it then went as it goes on fresh data.
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
