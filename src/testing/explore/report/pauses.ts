import type { TraceStep } from '../schedule/trace.js'

/** A statement that waits. */
export interface Pause {
  /** `waits`: for a lock. `stands`: at a yield point, until its unit is chosen. */
  readonly kind: 'waits' | 'stands'
  readonly unit: string
  /** The step at which the pause began. */
  readonly from: number
  /** The step that ended the pause; undefined if it never ended. */
  readonly to: number | undefined
}

/** All pauses of a schedule, in the order of their beginnings. */
export function findPauses(steps: readonly TraceStep[]): Pause[] {
  const pauses: Pause[] = []
  const open = new Map<string, Omit<Pause, 'to'>>()
  const change = (unit: string, at: number, kind: string): void => {
    const before = open.get(unit)
    if (before?.kind === kind) return // the unit now waits for another one
    if (before) pauses.push({ ...before, to: at })
    open.delete(unit)
    if (kind === 'waits') open.set(unit, { kind, unit, from: at })
    if (kind === 'point') open.set(unit, { kind: 'stands', unit, from: at })
  }
  for (const [i, { unit, effect, resumed }] of steps.entries()) {
    change(unit, i, 'its own step')
    change(unit, i, effect.kind)
    for (const other of resumed) change(other.unit, i, other.effect.kind)
  }
  return [...pauses, ...[...open.values()].map((pause) => ({ ...pause, to: undefined }))].toSorted(
    (a, b) => a.from - b.from,
  )
}
