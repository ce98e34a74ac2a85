import type { GatedSession, SessionObserver } from '../../gate/gated-session.js'
import type { Plan, Planner, SessionView } from '../../gate/plan.js'
import type { Request } from '../../wire/request.js'

/**
 * How `setup` and the like run: every step at once, but the first time one by one, so that what each transaction has
 * written can be seen before it ends.
 */
export class FreeRun implements SessionObserver, Planner {
  /** Nothing new was asked for since the last run. */
  #isKnown = false
  /** Requests that were looked at, with their parameters. */
  readonly #seen = new Set<string>()
  /** Why a transaction was not allowed to end. */
  failure: unknown
  readonly #planner: Planner
  readonly #beforeEnd: (session: GatedSession) => Promise<void>

  constructor(planner: Planner, beforeEnd: (session: GatedSession) => Promise<void>) {
    this.#planner = planner
    this.#beforeEnd = beforeEnd
  }

  /** A run is over, and what it wrote is known. */
  learned(): void {
    this.#isKnown = true
  }

  plan(request: Request, session: SessionView): Plan | Promise<Plan> {
    const key = JSON.stringify([request.text, request.values])
    // From something new on, the rest of the run is looked at too: it may be in the same transaction.
    if (!this.#seen.has(key)) this.#isKnown = false
    this.#seen.add(key)
    return this.#isKnown
      ? { steps: [], isSplit: false, opensSavepoint: false }
      : this.#planner.plan(request, session)
  }

  refuseSplit(text: string): void {
    this.#planner.refuseSplit(text)
  }

  onChange(session: GatedSession): void {
    if (session.state === 'gated') void this.#advance(session)
    if (session.state === 'closing') session.onGone()
  }

  async #advance(session: GatedSession): Promise<void> {
    try {
      if (session.step?.endsTransaction) await this.#beforeEnd(session)
      session.release()
    } catch (error) {
      // What must not be committed is not.
      this.failure = error
      session.destroy()
    }
  }
}
