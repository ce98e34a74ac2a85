import type { CutFault, Fault, Injection, Strike } from './fault.js'
import { statementPattern } from './statement-pattern.js'

/** A fault that was injected, with its counts. */
export class ActiveFault implements Injection {
  readonly happened: Promise<Strike | undefined>
  readonly fault: Fault
  strikes = 0
  isEnded = false
  readonly #pattern: RegExp | undefined
  readonly #onEnd: (fault: ActiveFault) => void
  #matches = 0
  #settle: (strike: Strike | undefined) => void = () => {}

  constructor(fault: Fault, onEnd: (fault: ActiveFault) => void) {
    this.fault = fault
    this.#onEnd = onEnd
    this.#pattern = fault.kind === 'cut' ? statementPattern(fault.statement) : undefined
    this.happened = new Promise((resolve) => {
      this.#settle = resolve
    })
  }

  end(): void {
    if (this.isEnded) return
    this.isEnded = true
    this.#settle(undefined)
    this.#onEnd(this)
  }

  strike(strike: Strike): void {
    this.strikes++
    this.#settle(strike)
  }

  /** Counts a request with these statements. Returns true if the fault cuts its connection. */
  chooses(texts: readonly string[]): this is { readonly fault: CutFault } {
    const { fault } = this
    if (fault.kind !== 'cut' || !texts.some((text) => this.#pattern?.test(text))) return false
    this.#matches++
    const first = fault.nth ?? 1
    const last = fault.times === 'always' ? Number.POSITIVE_INFINITY : first + (fault.times ?? 1) - 1
    return this.#matches >= first && this.#matches <= last
  }
}
