import type { TraceStep } from '../schedule/trace.js'

/** A statement that has begun and is not done. */
export interface Pause {
  /** It waits for a lock, or stands at a yield point until it is its turn. */
  readonly kind: 'waits' | 'stands'
  readonly unit: string
  /** The step at which it began to. */
  readonly from: number
  /** The step that let it go on, or that was its own next one; none: it never went on. */
  readonly to: number | undefined
}

/** Which statements stood still, and from which step to which. */
export function findPauses(steps: readonly TraceStep[]): Pause[] {
  const pauses: Pause[] = []
  const open = new Map<string, Omit<Pause, 'to'>>()
  const turn = (unit: string, at: number, kind: string): void => {
    const before = open.get(unit)
    if (before?.kind === kind) return // waits for somebody else now
    if (before) pauses.push({ ...before, to: at })
    open.delete(unit)
    if (kind === 'waits') open.set(unit, { kind, unit, from: at })
    if (kind === 'point') open.set(unit, { kind: 'stands', unit, from: at })
  }
  for (const [i, { unit, effect, resumed }] of steps.entries()) {
    turn(unit, i, 'its own step')
    turn(unit, i, effect.kind)
    for (const other of resumed) turn(other.unit, i, other.effect.kind)
  }
  return [...pauses, ...[...open.values()].map((pause) => ({ ...pause, to: undefined }))].toSorted(
    (a, b) => a.from - b.from,
  )
}
