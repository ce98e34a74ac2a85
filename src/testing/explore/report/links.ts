import { conflictAny, type Footprint } from '../footprint/footprint.js'
import type { Effect, TraceStep } from '../schedule/trace.js'

/** A relation between two steps of a schedule. */
export interface StepLink {
  /**
   * `blocks`: `to` waits for a lock that the unit of `from` took in that step, as far as that is known. `frees`: `from`
   * releases the lock for which `to` waits. `reads`: `to` sees what `from` commits. `misses`: `to` reads before `from`
   * commits what it would have read.
   */
  readonly kind: 'blocks' | 'frees' | 'reads' | 'misses'
  /** Index into `steps`. */
  readonly from: number
  /** Index into `steps`. */
  readonly to: number
  /** The table, row or lock of the link: `stock`, `row 'lamp' of stock`, `row lock, stock`. */
  readonly what?: string | undefined
}

/**
 * The links that the steps themselves show: `blocks` and `frees`. `readLinks` finds the others.
 *
 * @param footprints the footprints of the steps, as far as they are known
 */
export function findLinks(
  steps: readonly TraceStep[],
  footprints: readonly (Footprint | undefined)[] = [],
): StepLink[] {
  const links: StepLink[] = []
  /** By the unit: its last step. If the unit waits, it waits in this step. */
  const last = new Map<string, number>()
  /** The step in which the holder took the lock for which step `to` waits; its last step, if that is not known. */
  const takenAt = (holder: string, to: number): number | undefined => {
    const until = last.get(holder) ?? -1
    const wanted = footprints[to]?.locks ?? []
    for (let i = until; i >= 0 && !(steps[i]?.unit === holder && endsAll(footprints[i])); i--)
      if (steps[i]?.unit === holder && conflictAny(wanted, footprints[i]?.locks ?? [])) return i
    return last.get(holder)
  }
  const waitsAt = (unit: string, effect: Effect): void => {
    const to = last.get(unit)
    if (effect.kind !== 'waits' || to === undefined) return
    for (const holder of effect.for) {
      const from = takenAt(holder, to) // undefined for a backend that is no actor
      const isKnown = links.some((link) => link.kind === 'blocks' && link.from === from && link.to === to)
      if (from !== undefined && !isKnown) links.push({ kind: 'blocks', from, to, what: effect.what })
    }
  }
  for (const [i, { unit, effect, resumed }] of steps.entries()) {
    last.set(unit, i)
    waitsAt(unit, effect)
    for (const other of resumed) {
      const to = last.get(other.unit)
      if (other.effect.kind === 'waits') waitsAt(other.unit, other.effect)
      else if (to !== undefined) links.push({ kind: 'frees', from: i, to })
    }
  }
  return links
}

const endsAll = (footprint: Footprint | undefined): boolean =>
  footprint?.ends === 'commit' || footprint?.ends === 'rollback'
