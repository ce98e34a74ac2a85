import { type Footprint, KEY_SHARE, overlapAny } from '../footprint/footprint.js'
import { type Execution, isSameActor, type Transition } from './execution.js'

/**
 * Finds races that no order of steps can show. A statement may take its snapshot, read rows, and then wait for a lock. All
 * of that is one step, so the search cannot try a COMMIT between the read and the lock.
 */
export class UnlockedReads {
  /** Steps that read other rows than those that they lock, by unit, text and parameters. */
  readonly #readers = new Map<string, Transition>()
  /** By the unit: the footprints of its steps that write. */
  readonly #writes = new Map<string, Set<Footprint>>()

  observe(transition: Transition, values: unknown, execution: Execution): void {
    const { unit, footprint } = transition
    if (footprint.unboundedBecause !== undefined || footprint.inserts.length + footprint.changes.length > 0)
      this.#writes.set(unit, (this.#writes.get(unit) ?? new Set()).add(footprint))
    if (footprint.unlockedReads.length === 0) return
    const locksRows = execution
      .newLocks(transition)
      .some(({ isOfExistingRow, strength }) => isOfExistingRow && strength > KEY_SHARE)
    if (locksRows) this.#readers.set(JSON.stringify([unit, footprint.text, values]), transition)
  }

  /** A note for each statement in `#readers` that reads what another actor writes. */
  get notes(): readonly string[] {
    const readers = [...this.#readers.values()].filter((reader) => this.#isWrittenByOthers(reader))
    return [...new Set(readers.map(({ footprint }) => footprint.text))].map(
      (text) =>
        `${JSON.stringify(text)} reads other rows than those it locks. What is committed after it has read them and before it has its lock was not tried.`,
    )
  }

  #isWrittenByOthers({ unit, footprint: { unlockedReads } }: Transition): boolean {
    return [...this.#writes].some(
      ([other, footprints]) =>
        !isSameActor(unit, other) &&
        [...footprints].some(
          ({ unboundedBecause, inserts, changes }) =>
            unboundedBecause !== undefined || overlapAny(unlockedReads, [...inserts, ...changes]),
        ),
    )
  }
}
