import { setMaxListeners } from 'node:events'
import type { FlightSpec } from './flight-spec.js'

/** How the wait of a caller has ended. */
export type Ending =
  /** `read` makes a copy for each caller, so that callers cannot change the value of each other. */
  | {
      readonly how: 'value'
      readonly read: () => unknown
      /** The fence of the stored value. Undefined if it is not known. */
      readonly fence: number | undefined
    }
  | { readonly how: 'error'; readonly error: unknown }
  /** `waitMs` is over, or the database could not be reached (`error`). */
  | { readonly how: 'timed out'; readonly error?: unknown }

/** One caller that waits. */
export class FlightCall {
  readonly spec: FlightSpec
  readonly ended: Promise<Ending>
  /** The caller takes a value of this fence or a higher one. Undefined until the first poll on its behalf. */
  after: number | undefined
  /** True if the caller has waited for a load. */
  hasWaited = false
  /** Where the load runs that the caller waits for. Undefined while that is not known. */
  behind: 'this process' | 'another process' | undefined
  /** True if the wait has ended. */
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
    // Many calls may share a signal. Node.js would warn of a leak.
    if (signal) setMaxListeners(0, signal)
    signal?.addEventListener('abort', this.#abort)
    this.startTimer()
  }

  get waitedMs(): number {
    return performance.now() - this.startedAt
  }

  /** Starts `waitMs` anew. */
  startTimer(): void {
    this.stopTimer()
    // With `waitMs: 0`, the call ends when a poll shows that there is a load to wait for.
    if (this.spec.waitMs > 0 && !this.isOver)
      this.#timer = setTimeout(() => this.end({ how: 'timed out' }), this.spec.waitMs)
  }

  /** The caller's own load is bounded by `timeoutMs` instead. */
  stopTimer(): void {
    clearTimeout(this.#timer)
  }

  /** Another load runs. `behind`: where, undefined if that is not known. */
  onHeld(after: number, behind: FlightCall['behind']): void {
    this.after ??= after
    this.hasWaited = true
    // A row that is locked for a moment says nothing about the holder.
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
