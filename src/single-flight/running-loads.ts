/**
 * The loads of one process that have not ended, by key and by the holder name of their lead. If this process gets the lead again while one of them runs, that
 * load has lost the lead, and hangs.
 */
export class RunningLoads {
  readonly #holders = new Map<string, Set<string>>()

  of(key: string): number {
    return this.#holders.get(key)?.size ?? 0
  }

  has(key: string, holder: string): boolean {
    return this.#holders.get(key)?.has(holder) ?? false
  }

  /** Adds a load. Returns the function that removes it. */
  begin(key: string, holder: string): () => void {
    const holders = this.#holders.get(key) ?? new Set()
    this.#holders.set(key, holders.add(holder))
    return () => {
      holders.delete(holder)
      if (holders.size === 0) this.#holders.delete(key)
    }
  }
}
