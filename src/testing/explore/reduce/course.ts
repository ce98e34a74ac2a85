import { countOf } from '../../gate/result.js'
import { actorOf, type Effect, type TraceStep } from '../schedule/trace.js'
import { ADVISORY, EMPTY, type Footprint, join, type Lock, UPDATE } from './footprint.js'

/** A step that somebody can take, or has taken. */
export interface Move {
  readonly unit: string
  readonly footprint: Footprint
}

/** Where one of those who run stands. */
export interface Standing {
  /** All that its open transaction has done, and the advisory locks of its session. */
  readonly done: Footprint
  /** Its transaction has begun. */
  readonly hasBegun: boolean
  /** Its transaction has taken its snapshot, at levels where that happens once. */
  readonly hasSnapshot: boolean
  /** What it waits to do. */
  readonly waiting: Footprint | undefined
  /** Locks of `done` that it has for sure, because the server counted as many rows as there were keys. */
  readonly sure: readonly Lock[]
}

const FRESH: Standing = { done: EMPTY, hasBegun: false, hasSnapshot: false, waiting: undefined, sure: [] }

/** Keeps book of who holds what, step by step. */
export class Course {
  readonly #standings = new Map<string, Standing>()

  of(unit: string): Standing {
    return this.#standings.get(unit) ?? FRESH
  }

  get units(): readonly string[] {
    return [...this.#standings.keys()]
  }

  /** @param open those whose transactions are open, with their locks, after the step */
  take({ unit, effect, resumed }: TraceStep, footprint: Footprint, open: ReadonlySet<string>): void {
    const { done, sure, hasSnapshot } = this.of(unit)
    this.#set(unit, {
      done: join(done, footprint),
      hasBegun: true,
      hasSnapshot: hasSnapshot || !footprint.isEarly,
      waiting: footprint,
      sure: footprint.ends ? [] : sure,
    })
    for (const other of [{ unit, effect }, ...resumed]) this.#answer(other.unit, other.effect)
    for (const [other, { done, waiting }] of this.#standings)
      if (!waiting && (!open.has(other) || (other === unit && endsTransaction(footprint))))
        this.#set(other, { ...FRESH, done: whatStays(done) })
  }

  #answer(unit: string, effect: Effect): void {
    const standing = this.of(unit)
    if (effect.kind === 'waits' || effect.kind === 'point' || !standing.waiting) return
    const count = effect.kind === 'done' ? countOf(effect.result).count : 0
    const sure = standing.waiting.holds.filter(({ place }) => place.keys?.size === count)
    this.#set(unit, { ...standing, waiting: undefined, sure: [...standing.sure, ...sure] })
  }

  /** The locks that a step adds to those that its unit has. */
  newLocks({ unit, footprint }: Move): readonly Lock[] {
    const { sure } = this.of(unit)
    return footprint.locks.filter((lock) => !sure.some((held) => covers(held, lock)))
  }

  #set(unit: string, standing: Standing): void {
    this.#standings.set(unit, standing)
  }

  /** Those who wait for a unit, directly or behind each other, and the unit itself. */
  behind(unit: string, waitsFor: (waiter: string, holder: string) => boolean): readonly string[] {
    const found = new Set([unit])
    for (const holder of found)
      for (const other of this.units) if (this.of(other).waiting && waitsFor(other, holder)) found.add(other)
    return [...found]
  }
}

function covers(held: Lock, wanted: Lock): boolean {
  const { table, schema, index, keys } = wanted.place
  // Two tables may have one name.
  if (schema === undefined || held.place.schema !== schema) return false
  if (held.place.table !== table || held.place.index !== index || held.strength < wanted.strength)
    return false
  return keys !== undefined && [...keys].every((key) => held.place.keys?.has(key))
}

/** Also of COMMIT AND CHAIN, after which another one is open. */
const endsTransaction = ({ ends }: Footprint): boolean => ends === 'commit' || ends === 'rollback'

const ANY_ADVISORY: Lock = { place: { table: ADVISORY, index: 'key' }, strength: UPDATE, seeks: false }

/** Some advisory locks outlive their transaction; which ones is not kept book of. */
function whatStays({ locks, everything }: Footprint): Footprint {
  const own = locks.filter(({ place }) => place.table === ADVISORY)
  const kept = everything === undefined ? own : [...own, ANY_ADVISORY]
  return kept.length > 0 ? { ...EMPTY, locks: kept } : EMPTY
}

export const areOfOneActor = (a: string, b: string): boolean => actorOf(a) === actorOf(b)
