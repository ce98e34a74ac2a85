import type { Database } from '../postgres/database.js'
import { lineOf } from '../postgres/reserved-line.js'
import { renewLock, renewLocks } from './lock-statements.js'

/** A lock as its keeper sees it. */
export interface Kept {
  readonly name: string
  readonly permit: number
  readonly fence: number
  readonly ttlMs: number
  /** When it is to be renewed next, by `performance.now()`. */
  readonly renewAt: number
  /** How long it may be renewed for at this moment; 0 if it is over, which it has then noticed. */
  askFor(now: number): number
  /** A renewal is on its way. */
  onSent(): void
  /** It lasts from `sentAt` on, as was asked for. */
  onRenewed(sentAt: number, forMs: number): void
  /** Nothing is known: the server may be back before the lease has run out. */
  onUnanswered(): void
  /** Another has it. */
  onStolen(): void
}

/** How many go with one statement. */
const MOST = 500

/**
 * Renews all locks of a process, each when a third of its time has passed: one statement for all that are due, and those that soon are. It goes
 * over a connection of its own, or else one of the pool: handlers may have taken all of these.
 */
export class LockKeeper {
  readonly #database: Database
  readonly #locks = new Set<Kept>()
  #timer: NodeJS.Timeout | undefined
  #isRenewing = false

  constructor(database: Database) {
    this.#database = database
  }

  get held(): readonly Kept[] {
    return [...this.#locks]
  }

  add(lock: Kept): void {
    this.#locks.add(lock)
    lineOf(this.#database).enter()
    this.#schedule()
  }

  remove(lock: Kept): void {
    if (!this.#locks.delete(lock)) return
    lineOf(this.#database).leave()
    if (this.#locks.size === 0) clearTimeout(this.#timer)
  }

  #schedule(): void {
    clearTimeout(this.#timer)
    if (this.#isRenewing || this.#locks.size === 0) return
    const next = Math.min(...[...this.#locks].map(({ renewAt }) => renewAt))
    if (next === Number.POSITIVE_INFINITY) return // those on their way say when
    this.#timer = setTimeout(() => void this.#renewDue(), Math.max(0, next - performance.now()))
  }

  async #renewDue(): Promise<void> {
    this.#isRenewing = true
    const sentAt = performance.now()
    const due = [...this.#locks]
      .map((lock) => ({ lock, forMs: lock.askFor(sentAt) }))
      .filter(({ lock, forMs }) => forMs > 0 && lock.renewAt <= sentAt + lock.ttlMs / 6)
      .slice(0, MOST)
    if (due.length > 0) await this.#renew(due, sentAt)
    this.#isRenewing = false
    this.#schedule()
  }

  async #renew(due: readonly { lock: Kept; forMs: number }[], sentAt: number): Promise<void> {
    for (const { lock } of due) lock.onSent()
    const withinMs = Math.ceil(Math.min(...due.map(({ lock }) => lock.ttlMs)) / 3)
    const asked = due.map(({ lock: { name, permit, fence }, forMs }) => ({
      name,
      permit,
      fence,
      ttlMs: forMs,
    }))
    let states: readonly unknown[] = []
    try {
      const values = [JSON.stringify(asked)]
      const [row] = await lineOf(this.#database)
        .send(renewLocks, values, withinMs)
        .catch(() => this.#database.sendPart(renewLocks, values, withinMs))
      states = JSON.parse(`${row?.states}`)
    } catch {
      // Each is told so.
    }
    for (const [n, { lock, forMs }] of due.entries()) {
      if (states[n] === 'held') lock.onRenewed(sentAt, forMs)
      else if (states[n] === 'lost') lock.onStolen()
      else if (states[n] === 'locked') void this.#renewAlone(lock, forMs)
      else lock.onUnanswered()
    }
  }

  /** Another has its row for a moment: this one waits for that. */
  async #renewAlone(lock: Kept, forMs: number): Promise<void> {
    const sentAt = performance.now()
    const waitMs = Math.ceil(lock.ttlMs / 3)
    const values = [lock.name, String(lock.permit), String(lock.fence), String(forMs), String(waitMs)]
    try {
      const [row] = await this.#database.sendPart(renewLock, values, 2 * waitMs)
      if (row?.state === 'held') lock.onRenewed(sentAt, forMs)
      else if (row?.state === 'lost') lock.onStolen()
      else lock.onUnanswered()
    } catch {
      lock.onUnanswered()
    }
    this.#schedule()
  }
}
