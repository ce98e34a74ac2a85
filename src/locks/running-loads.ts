/**
 * The loads of one process that have not ended, by key, and under which name each has, or had, the lead. Whoever has the lead while there is another knows that this
 * one has lost it, and hangs.
 */
export class RunningLoads {
  readonly #holders = new Map<string, Set<string>>()

  of(key: string): number {
    return this.#holders.get(key)?.size ?? 0
  }

  has(key: string, holder: string): boolean {
    return this.#holders.get(key)?.has(holder) ?? false
  }

  /** One more; returns what ends it. */
  begin(key: string, holder: string): () => void {
    const holders = this.#holders.get(key) ?? new Set()
    this.#holders.set(key, holders.add(holder))
    return () => {
      holders.delete(holder)
      if (holders.size === 0) this.#holders.delete(key)
    }
  }
}
