import type { Effect, TraceStep } from '../schedule/trace.js'

/** How two steps of a schedule hang together. */
export interface StepLink {
  /**
   * `blocks`: `to` waits for what the unit of `from` holds; `frees`: `from` lets `to` (the step that waited) go on;
   * `reads`: `to` sees what `from` (a commit) published; `misses`: `to` read before `from` (a commit) published what it
   * would have read.
   */
  readonly kind: 'blocks' | 'frees' | 'reads' | 'misses'
  /** Index into `steps`. */
  readonly from: number
  /** Index into `steps`. */
  readonly to: number
  /** What it is about: `stock`, `stock (lamp)`. */
  readonly what?: string | undefined
}

/** Who waits for whom, and who lets whom go on: all that the steps themselves tell. `readLinks` knows the rest. */
export function findLinks(steps: readonly TraceStep[]): StepLink[] {
  const links: StepLink[] = []
  /** The last step of each unit: where its statement waits, if it does, and as much as is known of where it took a lock. */
  const last = new Map<string, number>()
  const waitsAt = (unit: string, effect: Effect): void => {
    const to = last.get(unit)
    if (effect.kind !== 'waits' || to === undefined) return
    for (const holder of effect.for) {
      const from = last.get(holder) // none: a stranger, or it has not begun
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
