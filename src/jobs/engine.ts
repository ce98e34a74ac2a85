import type { Database } from '../postgres/database.js'
import { type EventOrigin, emit } from '../postgres/events.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { queueTopic } from './add-jobs.js'
import { CANCEL_TOPIC } from './cancel-job.js'
import { CircuitBreaker } from './circuit-breaker.js'
import { Cursors } from './cursors.js'
import { Ender } from './ender.js'
import type { EngineParts } from './engine-parts.js'
import { Fetcher, type Lane } from './fetcher.js'
import { JobLine } from './job-line.js'
import { JobUpkeep } from './job-upkeep.js'
import { LeaseKeeper } from './lease-keeper.js'

/** What all workers of an instance share: three connections, one fetcher for each set of lanes, one heartbeat, one completer. */
export class Engine implements EngineParts {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly origin: EventOrigin
  readonly claims: JobLine
  readonly ends: JobLine
  readonly upkeep: JobLine
  readonly looks: JobLine
  readonly cursors = new Cursors()
  readonly breaker = new CircuitBreaker()
  readonly keeper = new LeaseKeeper(this)
  readonly ender = new Ender(this)
  readonly #jobUpkeep = new JobUpkeep(this)
  readonly #fetchers = new Map<string, Fetcher>()
  #users = 0
  #unsubscribe: (() => void) | undefined
  /** Nothing is sent any more. */
  isOver = false

  constructor(database: Database, wakeups: Wakeups) {
    this.database = database
    this.wakeups = wakeups
    this.origin = database.origin
    this.claims = new JobLine(database)
    this.ends = new JobLine(database)
    this.upkeep = new JobLine(database)
    this.looks = new JobLine(database)
  }

  /** A worker begins. */
  enter(keepDays: Iterable<number>): void {
    for (const line of [this.claims, this.ends, this.upkeep]) line.enter()
    this.#jobUpkeep.keepDays(keepDays)
    if (this.#users++ > 0) return
    this.#jobUpkeep.start()
    this.#unsubscribe = this.wakeups.subscribe(CANCEL_TOPIC, () => this.keeper.beatNow())
  }

  /** A worker has ended. */
  leave(): void {
    if (--this.#users === 0) {
      this.#jobUpkeep.stop()
      this.#unsubscribe?.()
    }
    for (const line of [this.claims, this.ends, this.upkeep]) line.leave()
  }

  /** The one for these lanes. */
  fetcher(lanes: readonly Lane[]): Fetcher {
    const key = lanes.map(({ id, leaseMs }) => `${id}:${leaseMs}`).join()
    let fetcher = this.#fetchers.get(key)
    if (!fetcher) {
      fetcher = new Fetcher(this, lanes)
      this.#fetchers.set(key, fetcher)
    }
    return fetcher
  }

  /** The database is there. */
  onAnswer(): void {
    if (!this.breaker.succeed()) return
    emit('dibs:worker.breaker-closed', this.origin)
    // They wait until it would have been tried again.
    for (const fetcher of this.#fetchers.values()) fetcher.poke()
  }

  /** Something of this process is due in so long: it need not wait for a look that may come later. */
  onScheduled(delayMs: number): void {
    this.#jobUpkeep.promoteIn(delayMs)
  }

  /** There is something to do in these queues, for whoever has room. */
  hint(queues: Iterable<string>): void {
    for (const queue of queues) this.wakeups.hint(queueTopic(queue))
  }

  close(): void {
    this.isOver = true
    this.#jobUpkeep.stop()
  }
}
