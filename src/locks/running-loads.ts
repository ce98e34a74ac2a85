/**
 * The loads of one process that have not ended, by key. Whoever has the lead while there is another knows that this one has lost it, and hangs.
 */
export class RunningLoads {
  readonly #counts = new Map<string, number>()

  of(key: string): number {
    return this.#counts.get(key) ?? 0
  }

  /** One more; returns what ends it. */
  begin(key: string): () => void {
    this.#counts.set(key, this.of(key) + 1)
    return () => {
      const left = this.of(key) - 1
      if (left > 0) this.#counts.set(key, left)
      else this.#counts.delete(key)
    }
  }
}
