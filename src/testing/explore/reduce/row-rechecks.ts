import { countOf, type StepResult } from '../../gate/result.js'
import { type Footprint, overlapAny } from '../footprint/footprint.js'
import type { LearnedFacts } from './learned-facts.js'

/**
 * Finds statements whose result depends on whether they wait for a row. After a wait, PostgreSQL checks the condition of the
 * statement again, against the new version of the row. A statement that runs after the lock is free checks it only once.
 */
export class RowRechecks {
  readonly #facts: LearnedFacts
  /** Statements that waited, then did not match the row, and were the last of their transaction. */
  readonly #unmatchedLast = new Set<Footprint>()

  constructor(facts: LearnedFacts) {
    this.#facts = facts
  }

  /** Called for a statement that did not wait for a row that may be locked, since the row did not meet its condition. */
  addSkippedWait(footprint: Footprint): void {
    this.#addWaitDependent(footprint)
  }

  /**
   * Called for a statement whose wait has ended. PostgreSQL gave it the lock of the row, even if the new version of the row
   * does not meet the condition.
   *
   * @param isLast the transaction ends with the next step, so only a lock probe (NOWAIT, SKIP LOCKED) can notice the lock
   */
  addEndedWait(footprint: Footprint, result: StepResult, isLast: boolean): void {
    const keys = footprint.conditionalRows.reduce((sum, resource) => sum + (resource.keys?.size ?? 0), 0)
    if (keys === 0 || result.error || countOf(result).count >= keys) return
    if (isLast) this.#unmatchedLast.add(footprint)
    else this.#addWaitDependent(footprint)
  }

  /** Adds those statements of `#unmatchedLast` whose lock a statement may probe without a wait. */
  compareWithLockProbes(footprints: readonly Footprint[]): void {
    if (this.#unmatchedLast.size === 0) return
    const probes = footprints.flatMap(({ lockProbes }) => lockProbes)
    const mayProbe = footprints.some(({ unboundedBecause }) => unboundedBecause !== undefined)
    for (const footprint of this.#unmatchedLast)
      if (mayProbe || overlapAny(footprint.conditionalRows, probes)) this.#addWaitDependent(footprint)
  }

  #addWaitDependent({ text = '' }: Footprint): void {
    this.#facts.addWaitDependent(text)
  }
}
