/** What told the holder: a write that was refused, or only its own clock. */
export type LossKind = 'renewal' | 'step' | 'outcome' | 'deadline'

/** How a lease keeps itself alive: true while it is held, false once it is lost; a failure says nothing. */
export type Renew = () => Promise<boolean>

/**
 * The holder's side of a lease. It is renewed while its work goes on. When it is lost, or has not been renewed for as long as it lasts by
 * this process's own monotonic clock, the signal fires: from then on another may have taken over.
 */
export class Lease {
  readonly #renew: Renew
  readonly #leaseMs: number
  readonly #controller = new AbortController()
  readonly #explain: (how: LossKind) => Error
  #beat: NodeJS.Timeout | undefined
  #end: NodeJS.Timeout | undefined
  #isOver = false

  /** @param sinceAt when the statement was sent that began the lease, by `performance.now()` */
  constructor(renew: Renew, leaseMs: number, sinceAt: number, explain: (how: LossKind) => Error) {
    this.#renew = renew
    this.#leaseMs = leaseMs
    this.#explain = explain
    const goneMs = performance.now() - sinceAt
    // This process may have stood still since it asked.
    if (goneMs >= leaseMs) this.lose('deadline')
    else {
      this.#extend(sinceAt)
      this.#schedule(leaseMs / 3 - goneMs)
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** The work has ended. */
  stop(): void {
    this.#isOver = true
    clearTimeout(this.#beat)
    clearTimeout(this.#end)
  }

  /** Another holds it, or may. */
  lose(how: LossKind): void {
    if (this.#isOver) return
    this.stop()
    this.#controller.abort(this.#explain(how))
  }

  #extend(sinceAt: number): void {
    clearTimeout(this.#end)
    this.#end = setTimeout(
      () => this.lose('deadline'),
      Math.max(0, sinceAt + this.#leaseMs - performance.now()),
    )
  }

  #schedule(ms: number): void {
    this.#beat = setTimeout(() => void this.#keepAlive(), Math.max(0, ms))
  }

  async #keepAlive(): Promise<void> {
    const sentAt = performance.now()
    let isHeld: boolean | undefined
    try {
      isHeld = await this.#renew()
    } catch {
      // The server may be back before the lease has run out.
    }
    if (this.#isOver) return
    if (isHeld === false) return this.lose('renewal')
    if (isHeld) this.#extend(sentAt)
    this.#schedule(isHeld ? this.#leaseMs / 3 : this.#leaseMs / 10)
  }
}
