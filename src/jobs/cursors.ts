import type { ClaimedJob } from './claimed-job.js'

/** A lane and a priority, and the job after which those come that nobody is known to have. */
export interface Place {
  readonly lane: number
  readonly priority: number
  readonly after: number
}

/** Where a lane begins: its number, a priority and the id of a job. */
export type Top = readonly [lane: number, priority: number, id: number]

/** More priorities than this are not remembered of a lane: those that were not seen for the longest go, and a probe finds them again. */
const MOST_PRIORITIES = 32

/** Where claims go on: behind what this process has claimed before, so that rows which are gone, and which nobody has vacuumed yet, are not read again and again. */
export class Cursors {
  readonly #afters = new Map<number, Map<number, number>>()
  #turn = 0

  /** In the order in which they are to be claimed: the highest priority first, and among lanes with the same each is first in its turn. */
  places(lanes: readonly number[]): Place[] {
    const turn = this.#turn++ % Math.max(1, lanes.length)
    const inTurn = [...lanes.slice(turn), ...lanes.slice(0, turn)]
    return inTurn
      .flatMap((lane) => [...this.#of(lane)].map(([priority, after]) => ({ lane, priority, after })))
      .sort((one, other) => other.priority - one.priority)
  }

  /** These were claimed from their places. */
  pass(jobs: readonly ClaimedJob[]): void {
    for (const { lane, priority, id } of jobs) {
      const afters = this.#of(lane)
      const after = afters.get(priority)
      if (after === undefined || after < id) set(afters, priority, id)
    }
  }

  /** Where lanes begin, as somebody has seen who has looked from the start: priorities that nobody knew of, and what is behind a place, which is set back. True if there is any. */
  find(tops: readonly Top[]): boolean {
    let isBehind = false
    for (const [lane, priority, id] of tops) {
      const afters = this.#of(lane)
      const after = afters.get(priority)
      if (after !== undefined && after < id) continue
      set(afters, priority, id - 1)
      isBehind = true
    }
    return isBehind
  }

  #of(lane: number): Map<number, number> {
    let afters = this.#afters.get(lane)
    if (!afters) {
      afters = new Map([[0, 0]])
      this.#afters.set(lane, afters)
    }
    return afters
  }
}

function set(afters: Map<number, number>, priority: number, after: number): void {
  afters.delete(priority) // the last seen is the last
  afters.set(priority, after)
  const [oldest] = afters.keys()
  if (afters.size > MOST_PRIORITIES && oldest !== undefined) afters.delete(oldest)
}
