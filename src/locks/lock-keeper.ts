import { CONNECT_MS } from '../postgres/connections.js'
import type { Database } from '../postgres/database.js'
import { lineOf, NoAnswerError, type ReservedLine, sendEitherWay } from '../postgres/reserved-line.js'
import type { TextRow } from '../postgres/text-values.js'
import { firstFulfilled } from '../postgres/with-timeout.js'
import { renewLock, renewLocks } from './lock-statements.js'

/** A lock as its keeper sees it. */
export interface Kept {
  readonly name: string
  readonly permit: number
  readonly fence: number
  readonly leaseMs: number
  /** When it is to be renewed next, by `performance.now()`. */
  readonly renewAt: number
  /** When it is over unless it is renewed. */
  readonly endsAt: number
  /** How long it may be renewed for at this moment; 0 if it is over. */
  askFor(now: number): number
  /** It lasts from `sentAt` on, as was asked for. */
  onRenewed(sentAt: number, forMs: number): void
  /** Nothing is known: the server may be back before the lease has run out. */
  onUnanswered(): void
  /** Another has it. */
  onStolen(): void
}

interface Due {
  readonly lock: Kept
  readonly forMs: number
}

/** How many go with one statement. */
const MOST = 500

/** One over its own connection, and one over the pool in case that is silent. When both are out, what is due waits for this long. */
const MOST_BATCHES = 2
const FULL_MS = 20

/** How many wait for a row by themselves, each on a connection of the pool. */
const MOST_ALONE = 3

/** Leases go together if none is so many times as long as another. */
const ALIKE = 8

/** How long an answer is waited for before the next try: a quarter of the lease, so that there is time for another two, within these. */
const MIN_PATIENCE_MS = 100
const MAX_PATIENCE_MS = 5_000

/**
 * Renews all locks of a process, each when a third of its time has passed: one statement for all that are due, and those that soon are. It goes
 * over a connection of its own: handlers may have taken all of the pool. A connection that does not answer is replaced by another.
 */
export class LockKeeper {
  readonly #database: Database
  readonly #locks = new Set<Kept>()
  #timer: NodeJS.Timeout | undefined
  #nextAt = Number.POSITIVE_INFINITY
  /** What is on its way, and until when that is waited for. */
  readonly #asked = new Map<Kept, number>()
  #batches = 0
  #alone = 0

  constructor(database: Database) {
    this.#database = database
  }

  get held(): readonly Kept[] {
    return [...this.#locks]
  }

  add(lock: Kept): void {
    this.#locks.add(lock)
    lineOf(this.#database).enter()
    if (lock.renewAt < this.#nextAt) this.#setTimer(lock.renewAt)
  }

  remove(lock: Kept): void {
    if (!this.#locks.delete(lock)) return
    this.#asked.delete(lock)
    lineOf(this.#database).leave()
    if (this.#locks.size === 0) this.#setTimer(Number.POSITIVE_INFINITY)
  }

  #setTimer(at: number): void {
    clearTimeout(this.#timer)
    this.#nextAt = at
    if (at === Number.POSITIVE_INFINITY) return
    // A lock that is held keeps no process alive.
    this.#timer = setTimeout(() => this.#renewDue(), Math.max(0, at - performance.now())).unref()
  }

  #schedule(): void {
    let next = Number.POSITIVE_INFINITY
    for (const lock of this.#locks) next = Math.min(next, this.#asked.get(lock) ?? lock.renewAt)
    const isFull = this.#batches >= MOST_BATCHES
    this.#setTimer(isFull ? Math.max(next, performance.now() + FULL_MS) : next)
  }

  #renewDue(): void {
    const now = performance.now()
    // What was asked for is left alone until its answer comes, or is not waited for any longer.
    const due = this.held.filter((lock) => (this.#asked.get(lock) ?? lock.renewAt - lock.leaseMs / 6) <= now)
    const shortest = due.reduce((least, { leaseMs }) => Math.min(least, leaseMs), Number.POSITIVE_INFINITY)
    // One that cannot wait for a slow network must not make the others hurry: these go with the next.
    const alike = due.filter(({ leaseMs }) => leaseMs <= ALIKE * shortest).sort((a, b) => a.endsAt - b.endsAt)
    const first = alike.slice(0, MOST)
    const asked = first.map((lock) => ({ lock, forMs: lock.askFor(now) })).filter(({ forMs }) => forMs > 0)
    if (asked.length > 0 && this.#batches < MOST_BATCHES) void this.#renew(asked, patienceFor(shortest))
    this.#schedule()
  }

  async #renew(due: readonly Due[], patienceMs: number): Promise<void> {
    const sentAt = performance.now()
    for (const { lock } of due) this.#asked.set(lock, sentAt + Math.max(patienceMs, lock.leaseMs / 4))
    const asked = due.map(({ lock: { name, permit, fence }, forMs }) => ({
      name,
      permit,
      fence,
      ttlMs: forMs,
    }))
    this.#batches++
    const states = await this.#send(JSON.stringify(asked), patienceMs).catch(() => [])
    this.#batches--
    for (const [n, { lock, forMs }] of due.entries()) {
      this.#asked.delete(lock)
      if (states[n] === 'held') lock.onRenewed(sentAt, forMs)
      else if (states[n] === 'lost') lock.onStolen()
      else if (states[n] === 'locked' && this.#alone < MOST_ALONE) void this.#renewAlone(lock, forMs)
      else lock.onUnanswered()
    }
    this.#schedule()
  }

  async #send(asked: string, patienceMs: number): Promise<readonly unknown[]> {
    const line = lineOf(this.#database)
    const overPool = () => this.#database.sendPart(renewLocks, [asked], patienceMs)
    const [row] = await this.#ask(line, asked, patienceMs, overPool)
    return JSON.parse(`${row?.states}`)
  }

  /** The pool helps out while the connection for it is made, is waited for, or cannot be had; while it is waited for, what is free first. */
  async #ask(
    line: ReservedLine,
    asked: string,
    patienceMs: number,
    overPool: () => Promise<TextRow[]>,
  ): Promise<TextRow[]> {
    if (line.isBusy) return await sendEitherWay(this.#database, renewLocks, [asked], { withinMs: patienceMs })
    if (!line.isOpen)
      return await firstFulfilled([line.send(renewLocks, [asked], patienceMs, CONNECT_MS), overPool()])
    return await line.send(renewLocks, [asked], patienceMs).catch((error) => {
      if (error instanceof NoAnswerError) throw error
      return overPool()
    })
  }

  /** Another has its row for a moment: this one waits for that. */
  async #renewAlone(lock: Kept, forMs: number): Promise<void> {
    const sentAt = performance.now()
    const waitMs = Math.ceil(lock.leaseMs / 3)
    this.#asked.set(lock, sentAt + 2 * waitMs)
    this.#alone++
    const values = [lock.name, String(lock.permit), String(lock.fence), String(forMs), String(waitMs)]
    const [row] = await this.#database.sendPart(renewLock, values, 2 * waitMs).catch(() => [])
    this.#alone--
    this.#asked.delete(lock)
    if (row?.state === 'held') lock.onRenewed(sentAt, forMs)
    else if (row?.state === 'lost') lock.onStolen()
    else lock.onUnanswered()
    this.#schedule()
  }
}

const patienceFor = (leaseMs: number): number =>
  Math.ceil(Math.min(MAX_PATIENCE_MS, Math.max(MIN_PATIENCE_MS, leaseMs / 4)))
