import type { GatedSession, SessionObserver } from '../../gate/gated-session.js'
import type { Plan, Planner, SessionView } from '../../gate/plan.js'
import type { Request } from '../../wire/request.js'

/**
 * How `setup` and the like run: every step at once, but the first time one by one, so that what each transaction has
 * written can be seen before it ends.
 */
export class FreeRun implements SessionObserver, Planner {
  /** From now on nothing is looked at. */
  isKnown = false
  /** Why a transaction was not allowed to end. */
  failure: unknown
  readonly #planner: Planner
  readonly #beforeEnd: (session: GatedSession) => Promise<void>

  constructor(planner: Planner, beforeEnd: (session: GatedSession) => Promise<void>) {
    this.#planner = planner
    this.#beforeEnd = beforeEnd
  }

  plan(request: Request, session: SessionView): Plan | Promise<Plan> {
    return this.isKnown
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
