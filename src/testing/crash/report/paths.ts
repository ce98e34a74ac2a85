import { showStatement } from '../../explore/report/printout.js'
import { countOf } from '../../gate/result.js'
import type { StatementLine, StoryLine } from '../story.js'
import type { RecoveryPath } from './report.js'

export const FROM_THE_START = 'from the start'
export const NOTHING_TO_DO = 'nothing to do'

const isRecovery = (line: StoryLine): line is StatementLine =>
  line.kind === 'statement' && line.who.startsWith('recovery')

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
  for (const line of story.filter(isRecovery)) {
    const round = line.who.replace(/\/\d+$/, '')
    rounds.set(round, [...(rounds.get(round) ?? []), showLine(line)])
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

  /** The name of the path, and whether it is one of recovery's own. */
  read(story: readonly StoryLine[]): { readonly path: string; readonly entersRecovery: boolean } {
    const rounds = roundsOf(story)
    // What began only when time had moved on was taken over, even if it then went as it goes on fresh data.
    const [first = sign([]), ...later] = rounds.map(sign)
    const isKnown =
      (first === this.#alone || first === this.#after) && later.every((round) => round === this.#after)
    const key = JSON.stringify(rounds)
    const known = this.#seen.get(key)
    const path = known ?? { name: this.#nameOf(rounds, isKnown), statements: rounds.flat(), points: 0 }
    path.points++
    this.#seen.set(key, path)
    return { path: path.name, entersRecovery: !isKnown }
  }

  get all(): readonly RecoveryPath[] {
    return [...this.#seen.values()]
  }

  #nameOf(rounds: readonly string[][], isKnown: boolean): string {
    const signs = rounds.map(sign)
    if (signs.every((one) => one === this.#after)) return NOTHING_TO_DO
    if (isKnown) return FROM_THE_START
    this.#letters++
    return nameOf(this.#letters)
  }
}

const sign = (round: readonly string[]): string => JSON.stringify(round)

/** A, B, … Z, AA. */
function nameOf(n: number): string {
  const rest = Math.floor((n - 1) / 26)
  return `${rest > 0 ? nameOf(rest) : ''}${String.fromCharCode(65 + ((n - 1) % 26))}`
}
