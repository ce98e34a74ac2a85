import type { DedicatedConnection } from '../postgres/dedicated-connection.js'

/** A full scan may take a twentieth of the time. */
const PAUSE_FACTOR = 20
/** The longest pause after a full scan, however long it took: this process may have been paused during the scan. */
const MAX_PAUSE_MS = 2_000
/** The pause between full scans while claims at the cursors find enough jobs. */
const BUSY_PAUSE_MS = 1_000
/** A full scan that takes longer than this, and longer than four claims, is slow: rows that vacuum could not remove are in its way. */
const SLOW_MS = 20
const SLOW_CLAIMS = 4

/** Decides when the next full scan is due, and whether full scans are slow. */
export class ScanPacing {
  /** The connection for slow scans. It is kept while scans are slow. */
  readonly #connection: DedicatedConnection
  #dueAt = 0
  /** The durations of the last two scans. One alone may be an outlier. */
  #tookMs: readonly [number, number] = [0, 0]
  #claimTookMs = Number.POSITIVE_INFINITY
  /** True if the last claim at the cursors found as many jobs as there was room for. */
  #isClaimFull = false
  #isConnectionKept = false

  constructor(connection: DedicatedConnection) {
    this.#connection = connection
  }

  get dueInMs(): number {
    return this.#dueAt - performance.now()
  }

  get isSlow(): boolean {
    const tookMs = Math.min(...this.#tookMs)
    return tookMs > SLOW_MS && tookMs > SLOW_CLAIMS * this.#claimTookMs
  }

  onClaimed({ tookMs, isFull }: { readonly tookMs: number; readonly isFull: boolean }): void {
    this.#claimTookMs = tookMs
    this.#isClaimFull = isFull
  }

  /** @param movedCursors true if the scan has found jobs that claims at the cursors would not find */
  onScanned(
    { tookMs, isFull }: { readonly tookMs: number; readonly isFull: boolean },
    movedCursors: boolean,
  ): void {
    this.#tookMs = [tookMs, this.#tookMs[0]]
    const pauseMs = Math.max(
      PAUSE_FACTOR * Math.min(...this.#tookMs),
      this.#isClaimFull && !movedCursors ? BUSY_PAUSE_MS : 0,
    )
    // Each job may have a priority that no cursor knows, so claims may not find the rest.
    const isNextDue = isFull && !this.#isClaimFull
    this.postpone(isNextDue ? 0 : Math.min(MAX_PAUSE_MS, pauseMs))
  }

  onFailed(): void {
    this.#tookMs = [0, 0]
    this.keepConnection(false)
    this.postpone(BUSY_PAUSE_MS)
  }

  postpone(ms: number): void {
    this.#dueAt = performance.now() + ms
  }

  keepConnection(isKept: boolean): void {
    if (isKept === this.#isConnectionKept) return
    this.#isConnectionKept = isKept
    if (isKept) this.#connection.retain()
    else this.#connection.release()
  }
}
