import { setTimeout as sleep } from 'node:timers/promises'

const EVERY_MS = 100

/** Measures how fast a count grows. While the count cannot be read, it counts as unchanged. */
export class Progress {
  readonly #read: () => Promise<number>
  #samples: { readonly at: number; readonly count: number }[] = []
  #isRunning = false

  constructor(read: () => Promise<number>) {
    this.#read = read
  }

  get count(): number {
    return this.#samples.at(-1)?.count ?? 0
  }

  start(): void {
    this.#isRunning = true
    void this.#run()
  }

  stop(): void {
    this.#isRunning = false
  }

  async #run(): Promise<void> {
    while (this.#isRunning) {
      try {
        const count = await this.#read()
        this.#samples.push({ at: performance.now(), count })
        this.#samples = this.#samples.slice(-200)
      } catch {
        // The server is away.
      }
      await sleep(EVERY_MS)
    }
  }

  /** In a second, over this time until now. */
  rate(overMs: number): number {
    const from = performance.now() - overMs
    const first = this.#samples.findLast(({ at }) => at <= from) ?? this.#samples[0]
    const elapsedMs = performance.now() - (first?.at ?? 0)
    return first ? ((this.count - first.count) / elapsedMs) * 1_000 : 0
  }

  /** Whether it came to that, in a time that begins now. */
  async until(isFit: (rate: number) => boolean, overMs: number, withinMs: number): Promise<boolean> {
    const from = performance.now()
    for (;;) {
      await sleep(EVERY_MS)
      const passedMs = performance.now() - from
      // Progress before the call does not count.
      if (passedMs >= overMs && isFit(this.rate(overMs))) return true
      if (passedMs > withinMs) return false
    }
  }
}
