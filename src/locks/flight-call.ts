import { setMaxListeners } from 'node:events'
import type { FlightSpec } from './flight-spec.js'

/** How the wait of a caller has ended. */
export type Ending =
  /** Read anew for each caller: what one does to its value is nothing to the others. */
  | {
      readonly how: 'value'
      readonly read: () => unknown
      /** Under which it was stored, undefined if that is not known. */
      readonly fence: number | undefined
    }
  | { readonly how: 'error'; readonly error: unknown }
  /** Its time is over; `error`: since the database could not be asked. */
  | { readonly how: 'timed out'; readonly error?: unknown }

/** One caller that waits. */
export class FlightCall {
  readonly spec: FlightSpec
  readonly ended: Promise<Ending>
  /** It takes what is loaded under this fence or a higher one; undefined while nobody has asked on its behalf. */
  after: number | undefined
  /** It found another at it. */
  hasWaited = false
  /** Whom it waits for at this moment; undefined while that is not known. */
  behind: 'this process' | 'another process' | undefined
  /** It was told, or has gone. */
  isOver = false
  readonly startedAt = performance.now()
  readonly #onEnd: (call: FlightCall) => void
  #resolve: (ending: Ending) => void = () => {}
  #timer: NodeJS.Timeout | undefined
  readonly #abort = (): void => this.end({ how: 'error', error: this.spec.signal?.reason })

  constructor(spec: FlightSpec, onEnd: (call: FlightCall) => void) {
    this.spec = spec
    this.#onEnd = onEnd
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve
    })
    const { signal } = spec
    // Any number of calls may share one; Node.js would warn of a leak.
    if (signal) setMaxListeners(0, signal)
    signal?.addEventListener('abort', this.#abort)
    this.startTimer()
  }

  get waitedMs(): number {
    return performance.now() - this.startedAt
  }

  /** It waits for `waitMs` from now on. */
  startTimer(): void {
    this.stopTimer()
    // Whoever is not to wait is told so once the server has said that there is something to wait for.
    if (this.spec.waitMs > 0 && !this.isOver)
      this.#timer = setTimeout(() => this.end({ how: 'timed out' }), this.spec.waitMs)
  }

  /** Its own load takes as long as it takes. */
  stopTimer(): void {
    clearTimeout(this.#timer)
  }

  /** Another is at it. `behind`: undefined if that is not known. */
  onHeld(after: number, behind: FlightCall['behind']): void {
    this.after ??= after
    this.hasWaited = true
    // Who has the row for a moment need not be another than before.
    this.behind = behind ?? this.behind ?? 'another process'
    if (this.spec.waitMs === 0) this.end({ how: 'timed out' })
  }

  end(ending: Ending): void {
    if (this.isOver) return
    this.isOver = true
    this.stopTimer()
    this.spec.signal?.removeEventListener('abort', this.#abort)
    this.#onEnd(this)
    this.#resolve(ending)
  }
}
