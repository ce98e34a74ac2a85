import { countOf } from '../../gate/result.js'
import { ADVISORY, EMPTY, type Footprint, join, type Lock, UPDATE } from '../footprint/footprint.js'
import { actorOf, type Effect, type TraceStep } from '../schedule/trace.js'

/** A step that a unit can take, or has taken. */
export interface Transition {
  readonly unit: string
  readonly footprint: Footprint
}

/** The state of a unit between two steps. */
interface UnitState {
  /** The joined footprint of all steps of its open transaction, with the advisory locks of its session. */
  readonly performed: Footprint
  /** True if its transaction has begun. */
  readonly hasBegun: boolean
  /** True if its transaction has taken its snapshot. Counts at REPEATABLE READ. */
  readonly hasSnapshot: boolean
  /** The footprint of the step that waits for a lock. */
  readonly blockedStep: Footprint | undefined
  /** Locks of `performed` that the unit certainly holds: the server counted as many rows as the lock has keys. */
  readonly certainLocks: readonly Lock[]
}

const INITIAL: UnitState = {
  performed: EMPTY,
  hasBegun: false,
  hasSnapshot: false,
  blockedStep: undefined,
  certainLocks: [],
}

/** Tracks, step by step, what each open transaction has done, which locks it may hold, and which units wait. */
export class Execution {
  readonly #states = new Map<string, UnitState>()

  stateOf(unit: string): UnitState {
    return this.#states.get(unit) ?? INITIAL
  }

  get units(): readonly string[] {
    return [...this.#states.keys()]
  }

  /** @param openUnits the units with an open transaction, and its locks, after the step */
  apply({ unit, effect, resumed }: TraceStep, footprint: Footprint, openUnits: ReadonlySet<string>): void {
    const { performed, certainLocks, hasSnapshot } = this.stateOf(unit)
    this.#states.set(unit, {
      performed: join(performed, footprint),
      hasBegun: true,
      hasSnapshot: hasSnapshot || !footprint.precedesSnapshot,
      blockedStep: footprint,
      certainLocks: footprint.ends ? [] : certainLocks,
    })
    for (const other of [{ unit, effect }, ...resumed]) this.#applyEffect(other.unit, other.effect)
    for (const [other, { performed, blockedStep }] of this.#states)
      if (!blockedStep && (!openUnits.has(other) || (other === unit && endsTransaction(footprint))))
        this.#states.set(other, { ...INITIAL, performed: keepAdvisoryLocks(performed) })
  }

  #applyEffect(unit: string, effect: Effect): void {
    const state = this.stateOf(unit)
    if (effect.kind === 'waits' || effect.kind === 'point' || !state.blockedStep) return
    const count = effect.kind === 'done' ? countOf(effect.result).count : 0
    // A statement that finds fewer rows than it has keys does not hold all of its locks.
    const certain = state.blockedStep.locksIfCounted.filter(
      ({ resource }) => resource.keys?.size === count, // guard: explorer.reduce-certain-locks
    )
    this.#states.set(unit, {
      ...state,
      blockedStep: undefined,
      certainLocks: [...state.certainLocks, ...certain],
    })
  }

  /** The locks of a step that its unit does not certainly hold already. */
  newLocks({ unit, footprint }: Transition): readonly Lock[] {
    const { certainLocks } = this.stateOf(unit)
    return footprint.locks.filter((lock) => !certainLocks.some((held) => covers(held, lock)))
  }

  /** The unit, and all units that wait for it, directly or through other waiting units. */
  withTransitiveWaiters(
    unit: string,
    waitsFor: (waiter: string, holder: string) => boolean,
  ): readonly string[] {
    const found = new Set([unit])
    for (const holder of found)
      for (const other of this.units)
        if (this.stateOf(other).blockedStep && waitsFor(other, holder)) found.add(other)
    return [...found]
  }
}

function covers(held: Lock, wanted: Lock): boolean {
  const { table, schema, index, keys } = wanted.resource
  // Two tables of different schemas may have one name.
  if (schema === undefined || held.resource.schema !== schema) return false
  if (held.resource.table !== table || held.resource.index !== index || held.strength < wanted.strength)
    return false
  return keys !== undefined && [...keys].every((key) => held.resource.keys?.has(key))
}

/** True for COMMIT and ROLLBACK, also with AND CHAIN, after which the next transaction is open. */
const endsTransaction = ({ ends }: Footprint): boolean => ends === 'commit' || ends === 'rollback'

const ANY_ADVISORY: Lock = {
  resource: { table: ADVISORY, index: 'key' },
  strength: UPDATE,
  isOfExistingRow: false,
}

/**
 * The part of a footprint that may outlive the transaction: its advisory locks. `Execution` does not track which of these
 * belong to the session, or were released.
 */
function keepAdvisoryLocks({ locks, unboundedBecause }: Footprint): Footprint {
  const own = locks.filter(({ resource }) => resource.table === ADVISORY)
  const kept = unboundedBecause === undefined ? own : [...own, ANY_ADVISORY]
  return kept.length > 0 ? { ...EMPTY, locks: kept } : EMPTY
}

export const isSameActor = (a: string, b: string): boolean => actorOf(a) === actorOf(b)
