import type { ActiveFault } from './active-fault.js'
import type { CutFault, Fault } from './fault.js'

/** One way of the bytes. */
export type Way = 'toServer' | 'toClient'

export type ChosenCut = ActiveFault & { readonly fault: CutFault }

const concerns = (fault: Fault, way: Way): boolean =>
  !('direction' in fault) || (fault.direction ?? 'both') === 'both' || fault.direction === way

/** All faults in force: what they mean together. */
export class ActiveFaults {
  readonly #all = new Set<ActiveFault>()

  add(fault: ActiveFault): void {
    this.#all.add(fault)
  }

  remove(fault: ActiveFault): void {
    this.#all.delete(fault)
  }

  endAll(): void {
    for (const fault of this.#all) fault.end()
  }

  get refuses(): boolean {
    return this.#of('refuse').length > 0
  }

  isSilent(way: Way): boolean {
    return this.#of('black-hole').some((fault) => concerns(fault, way))
  }

  bytesPerSecond(way: Way): number {
    const rates = this.#of('bandwidth').filter((fault) => concerns(fault, way))
    return Math.min(...rates.map(({ bytesPerSecond }) => bytesPerSecond))
  }

  /** @param luck from 0 to 1, for the jitter: so that it can be drawn once for several chunks */
  lateMs(way: Way, luck: number): number {
    let lateMs = 0
    for (const fault of this.#of('latency')) {
      if (!concerns(fault, way)) continue
      lateMs += Math.max(0, fault.delayMs + (fault.jitterMs ?? 0) * (2 * luck - 1))
    }
    return lateMs
  }

  /** Each fault counts the request for itself; the one that was injected first has it. */
  chooseCut(texts: readonly string[]): ChosenCut | undefined {
    if (this.#all.size === 0) return undefined
    const choosing = [...this.#all].filter((fault): fault is ChosenCut => fault.chooses(texts))
    return choosing[0]
  }

  #of<K extends Fault['kind']>(kind: K): Extract<Fault, { kind: K }>[] {
    if (this.#all.size === 0) return []
    const isOfKind = (fault: Fault): fault is Extract<Fault, { kind: K }> => fault.kind === kind
    return [...this.#all].map(({ fault }) => fault).filter(isOfKind)
  }
}
