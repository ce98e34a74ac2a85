import type { ClaimedJob } from './claimed-job.js'

/** The place where the claims of one lane and priority continue: at jobs with an id above `after`. */
export interface LanePosition {
  readonly lane: number
  readonly priority: number
  readonly after: number
}

/** The first job of a lane that a full scan has seen and not claimed. */
export type LaneStart = readonly [lane: number, priority: number, id: number]

/** The most priorities that are remembered of a lane. The ones unused for longest are forgotten, and a full scan finds them again. */
const MAX_PRIORITIES = 32

/** The places where the claims of this process continue: behind the jobs that it has claimed before. So claims do not read the dead rows of ended jobs again and again. */
export class LaneCursors {
  readonly #afters = new Map<number, Map<number, number>>()
  #turn = 0

  /** The cursors in the order of the claim: the highest priority first. Lanes of the same priority take turns at being first. */
  positions(lanes: readonly number[]): LanePosition[] {
    const turn = this.#turn++ % Math.max(1, lanes.length)
    const inTurn = [...lanes.slice(turn), ...lanes.slice(0, turn)]
    return inTurn
      .flatMap((lane) => [...this.#of(lane)].map(([priority, after]) => ({ lane, priority, after })))
      .sort((one, other) => other.priority - one.priority)
  }

  /** Moves the cursors behind these jobs, which were claimed. */
  advance(jobs: readonly ClaimedJob[]): void {
    for (const { lane, priority, id } of jobs) {
      const afters = this.#of(lane)
      const after = afters.get(priority)
      if (after === undefined || after < id) set(afters, priority, id)
    }
  }

  /** Sets cursors back to jobs that a full scan has found behind them, or at a new priority. Returns true if there are any. */
  rewind(tops: readonly LaneStart[]): boolean {
    let hasMoved = false
    for (const [lane, priority, id] of tops) {
      const afters = this.#of(lane)
      const after = afters.get(priority)
      if (after !== undefined && after < id) continue
      set(afters, priority, id - 1)
      hasMoved = true
    }
    return hasMoved
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
  afters.delete(priority) // keeps the map in the order of last use
  afters.set(priority, after)
  const [oldest] = afters.keys()
  if (afters.size > MAX_PRIORITIES && oldest !== undefined) afters.delete(oldest)
}
