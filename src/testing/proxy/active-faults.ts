import type { ActiveFault } from './active-fault.js'
import type { CutFault, Fault } from './fault.js'

/** The direction of bytes. */
export type FlowDirection = 'toServer' | 'toClient'

export type ChosenCut = ActiveFault & { readonly fault: CutFault }

const appliesTo = (fault: Fault, way: FlowDirection): boolean =>
  !('direction' in fault) || (fault.direction ?? 'both') === 'both' || fault.direction === way

/** All active faults, and their combined effect. */
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

  isSilent(way: FlowDirection): boolean {
    return this.#of('black-hole').some((fault) => appliesTo(fault, way)) // guard: proxy.black-hole-way
  }

  bytesPerSecond(way: FlowDirection): number {
    const rates = this.#of('bandwidth').filter((fault) => appliesTo(fault, way))
    return Math.min(...rates.map(({ bytesPerSecond }) => bytesPerSecond))
  }

  /** @param jitter a random number from 0 to 1, which several chunks can share */
  lateMs(way: FlowDirection, jitter: number): number {
    let lateMs = 0
    for (const fault of this.#of('latency')) {
      if (!appliesTo(fault, way)) continue
      lateMs += Math.max(0, fault.delayMs + (fault.jitterMs ?? 0) * (2 * jitter - 1))
    }
    return lateMs
  }

  /** Each fault counts the request. Of several that choose it, the one that was injected first cuts. */
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
