import type { GatedSession, SessionObserver } from '../../gate/gated-session.js'
import type { Plan, Planner, SessionView } from '../../gate/plan.js'
import type { Request } from '../../wire/request.js'

/**
 * Runs `setup`, `reset` and the invariant, which are not part of a schedule. Each step is released at once. Requests that are
 * new are split into steps, so that the writes of each transaction can be read before it ends.
 */
export class UngatedRun implements SessionObserver, Planner {
  /** True if all requests since the last `endRun` were seen before. */
  #hasOnlySeenRequests = false
  /** Requests that were seen so far, with their parameters. */
  readonly #seen = new Set<string>()
  /** The error for which a transaction was not allowed to end. */
  failure: unknown
  readonly #planner: Planner
  readonly #beforeEnd: (session: GatedSession) => Promise<void>

  constructor(planner: Planner, beforeEnd: (session: GatedSession) => Promise<void>) {
    this.#planner = planner
    this.#beforeEnd = beforeEnd
  }

  /** Called after `setup`. The writes of all requests so far are known. */
  endRun(): void {
    this.#hasOnlySeenRequests = true
  }

  plan(request: Request, session: SessionView): Plan | Promise<Plan> {
    const key = JSON.stringify([request.text, request.values])
    // After a new request, the rest of the run is split too, since it may be in the same transaction.
    if (!this.#seen.has(key)) this.#hasOnlySeenRequests = false
    this.#seen.add(key)
    return this.#hasOnlySeenRequests
      ? { steps: [], isSplit: false, opensSavepoint: false }
      : this.#planner.plan(request, session)
  }

  refuseSplit(text: string): void {
    this.#planner.refuseSplit(text)
  }

  onChange(session: GatedSession): void {
    if (session.state === 'gated') void this.#release(session)
    if (session.state === 'closing') session.onGone()
  }

  async #release(session: GatedSession): Promise<void> {
    try {
      if (session.step?.endsTransaction) await this.#beforeEnd(session)
      session.release()
    } catch (error) {
      // The transaction must not commit, so the connection ends.
      this.failure = error
      session.destroy()
    }
  }
}
