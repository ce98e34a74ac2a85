import { conflictAny, type Footprint } from '../reduce/footprint.js'
import type { Effect, TraceStep } from '../schedule/trace.js'

/** How two steps of a schedule hang together. */
export interface StepLink {
  /**
   * `blocks`: `to` waits for what the unit of `from` holds, since then as far as that can be told; `frees`: `from` lets `to` (the step that waited) go on;
   * `reads`: `to` sees what `from` (a commit) published; `misses`: `to` read before `from` (a commit) published what it
   * would have read.
   */
  readonly kind: 'blocks' | 'frees' | 'reads' | 'misses'
  /** Index into `steps`. */
  readonly from: number
  /** Index into `steps`. */
  readonly to: number
  /** What it is about: `stock`, `row 'lamp' of stock`, `row lock, stock`. */
  readonly what?: string | undefined
}

/**
 * Who waits for whom, and who lets whom go on: all that the steps themselves tell. `readLinks` knows the rest.
 *
 * @param footprints of the steps, as far as they are known
 */
export function findLinks(
  steps: readonly TraceStep[],
  footprints: readonly (Footprint | undefined)[] = [],
): StepLink[] {
  const links: StepLink[] = []
  /** The last step of each unit: where its statement waits, if it does. */
  const last = new Map<string, number>()
  /** Where the holder took what the step waits for; its last step, if that cannot be told. */
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
      const from = takenAt(holder, to) // none: a stranger, or it has not begun
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
