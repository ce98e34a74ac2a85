/** A pool's connections as things to wait for: whoever comes first is served first. */
export class Permits {
  readonly max: number
  #held = 0
  readonly #waiting: (() => void)[] = []

  constructor(max: number) {
    this.max = max
  }

  /** Nothing is returned when one is free; else what to wait for. */
  take(): Promise<void> | undefined {
    if (this.#held < this.max) {
      this.#held++
      return undefined
    }
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  give(): void {
    const next = this.#waiting.shift()
    if (next) next()
    else this.#held--
  }

  /** Whoever waits is given up, and is never served. */
  giveUp(): void {
    this.#waiting.length = 0
  }
}
