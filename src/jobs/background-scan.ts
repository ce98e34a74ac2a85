export interface ScanEvents {
  /** The scan has found jobs that it did not claim. */
  readonly onFound: () => void
  /** The scan has found none, but jobs became ready while it ran. */
  readonly onOutdated: () => void
  readonly onFailed: (error: unknown) => void
}

/** A full scan that runs beside the claims. */
export class BackgroundScan {
  readonly #events: ScanEvents
  #running: Promise<boolean> | undefined
  #isOutdated = false
  #hasUnclaimedWork = false

  constructor(events: ScanEvents) {
    this.#events = events
  }

  get isRunning(): boolean {
    return this.#running !== undefined
  }

  /** Returns true once after each scan that found jobs which it did not claim. */
  takeUnclaimedWork(): boolean {
    const had = this.#hasUnclaimedWork
    this.#hasUnclaimedWork = false
    return had
  }

  /** Called when a job became ready, which a scan in progress may not see. */
  onNotified(): void {
    this.#isOutdated ||= this.isRunning
  }

  /** @param scan resolves true if there are jobs that the scan has not claimed */
  start(scan: Promise<boolean>): void {
    this.#isOutdated = false
    this.#running = scan.then(
      (isMore) => {
        this.#running = undefined
        this.#hasUnclaimedWork = isMore
        if (isMore) this.#events.onFound()
        else if (this.#isOutdated) this.#events.onOutdated()
        return isMore
      },
      (error) => {
        this.#running = undefined
        this.#events.onFailed(error)
        return true // the failed scan may have left jobs
      },
    )
  }

  /** Waits for the scan that runs. Resolves true if there may be jobs that it has not claimed. */
  async result(): Promise<boolean> {
    return (await this.#running) ?? false
  }
}
