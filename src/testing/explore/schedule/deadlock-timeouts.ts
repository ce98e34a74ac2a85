import type { GatedSession } from '../../gate/gated-session.js'
import { LATE_DEADLOCK_CHECK_MS } from '../session/session-settings.js'

/** The `deadlock_timeout` of a session that may close a cycle of waits. */
const EARLY_DEADLOCK_CHECK_MS = 5

/**
 * Sets `deadlock_timeout` so that a deadlock ends soon and always has the same victim. The session that closes the cycle of
 * waits checks for a deadlock early, all others late.
 */
export class DeadlockTimeouts {
  /** Sessions that check early. */
  readonly #early = new Set<GatedSession>()

  /**
   * The SET statement to send before the next step of a session; none if its setting is right already.
   *
   * @param isWaitedFor true if others wait for the session, so that it may close a cycle if it waits for one of them
   */
  settingFor(session: GatedSession, isWaitedFor: boolean): readonly string[] {
    const checkedEarly = this.#early.has(session)
    if (isWaitedFor) this.#early.add(session)
    else this.#early.delete(session)
    if (isWaitedFor) return [setDeadlockTimeout(EARLY_DEADLOCK_CHECK_MS, session)]
    return checkedEarly ? [setDeadlockTimeout(LATE_DEADLOCK_CHECK_MS, session)] : []
  }

  checksEarly(session: GatedSession): boolean {
    return this.#early.has(session)
  }

  /** Waits until the early check of a session is over. During it, a cycle that another session closes would have this victim. */
  async awaitCheck(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, 6 * EARLY_DEADLOCK_CHECK_MS))
  }
}

/**
 * The statement that sets `deadlock_timeout`. A session with another role (SET ROLE) may lack the right to change it, which
 * must not fail its transaction, so DO catches the error. Other sessions use SET, since DO takes a snapshot.
 */
const setDeadlockTimeout = (ms: number, { hasOtherRole }: GatedSession): string =>
  !hasOtherRole
    ? `set deadlock_timeout = ${ms}`
    : `do $dibs$ begin perform pg_catalog.set_config('deadlock_timeout', '${ms}', false);
   exception when insufficient_privilege then null; end $dibs$`
