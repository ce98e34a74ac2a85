/** Limits the connections of a pool. Waiters get a connection in the order of their calls. */
export class ConnectionPermits {
  readonly max: number
  #held = 0
  readonly #waiting: (() => void)[] = []

  constructor(max: number) {
    this.max = max
  }

  /** Returns undefined if a connection was free. Otherwise resolves when the caller gets one. */
  acquire(): Promise<void> | undefined {
    if (this.#held < this.max) {
      this.#held++
      return undefined
    }
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  release(): void {
    const next = this.#waiting.shift()
    if (next) next()
    else this.#held--
  }

  /** Forgets all waiters. Their promises never settle. */
  dropWaiters(): void {
    this.#waiting.length = 0
  }
}
