import { BusyError, StatementTimeoutError } from '../errors.js'
import { wasRefused } from './fault.js'

/** Suggested retry delay for a call whose turn did not come in time. */
const RETRY_MS = 100

/** With `sendMany`: how many statements may be in flight before calls for different keys are gathered too. */
const LANES = 3

/** How long a statement occupies a lane. A slower one waits for a row lock of another caller, and must not hold up other keys. */
const LANE_MS = 50

/**
 * Sends the items of one key as one statement. Returns a result for each item, in their order. An `Error` is the
 * failure of one item. `waitMs` is the longest time that any of the items may still wait.
 */
export type SendBatch<I, R> = (items: readonly I[], waitMs: number) => Promise<readonly (R | Error)[]>

/**
 * Sends the items of several keys as one statement that waits for no lock. A key that another caller has locked has the
 * result undefined.
 */
export type SendGroups<I, R> = (
  groups: readonly (readonly I[])[],
) => Promise<readonly (readonly (R | Error)[] | undefined)[]>

export interface CoalescerOptions<I, R> {
  /** The maximum number of items in a statement. Default 100. */
  readonly maxBatch?: number
  /** Statements in flight for one key. Default 1. */
  readonly maxInFlight?: number
  /** Returns how many of these items, from the first, fit into one statement. Default: all. */
  readonly countFitting?: (items: readonly I[]) => number
  /** Also gathers the calls of one turn of the event loop. Otherwise the first call is sent at once. */
  readonly gathersTick?: boolean
  /** Lets several keys share a statement once `LANES` statements are in flight. */
  readonly sendMany?: SendGroups<I, R>
}

interface Pending<I, R> {
  readonly item: I
  readonly since: number
  /** When the call gives up waiting for its turn, by `performance.now()`. */
  readonly until: number
  readonly resolve: (result: R) => void
  readonly reject: (error: unknown) => void
  timer?: NodeJS.Timeout
}

interface Queue<I, R> {
  readonly key: string
  readonly pending: Set<Pending<I, R>>
  inFlight: number
}

interface Group<I, R> {
  readonly queue: Queue<I, R>
  readonly batch: readonly Pending<I, R>[]
}

/**
 * Gathers the calls that arrive while a statement for the same key is in flight, and sends them as one statement. A
 * call alone is never delayed. Without a coalescer, later calls would wait in the database for the same row, each on
 * its own connection.
 *
 * If the server refuses a statement, the coalescer sends its items again one by one, so that only the bad item fails.
 */
export class Coalescer<I, R> {
  readonly #send: SendBatch<I, R>
  readonly #options: CoalescerOptions<I, R>
  readonly #maxBatch: number
  readonly #maxInFlight: number
  readonly #maxLanes: number
  /** The queues of keys that have a statement in flight or a pending item. */
  readonly #queues = new Map<string, Queue<I, R>>()
  /** The queues that may send their next statement now. */
  readonly #ready = new Set<Queue<I, R>>()
  #lanes = 0
  #isScheduled = false

  constructor(send: SendBatch<I, R>, options: CoalescerOptions<I, R> = {}) {
    this.#send = send
    this.#options = options
    this.#maxBatch = options.maxBatch ?? 100
    this.#maxInFlight = options.maxInFlight ?? 1
    this.#maxLanes = options.sendMany ? LANES : Number.POSITIVE_INFINITY // guard: batch.lanes
  }

  /** The number of keys that have a statement in flight or a pending item. */
  get size(): number {
    return this.#queues.size
  }

  /** Resolves to the result of the item. If its turn does not come within `waitMs`, rejects with a `BusyError` about `subject`. */
  add(key: string, item: I, limit?: { readonly waitMs: number; readonly subject: string }): Promise<R> {
    const { waitMs = Number.POSITIVE_INFINITY, subject = key } = limit ?? {}
    return new Promise((resolve, reject) => {
      const since = performance.now()
      const one: Pending<I, R> = { item, since, until: since + waitMs, resolve, reject }
      const queue = this.#queues.get(key) ?? { key, pending: new Set(), inFlight: 0 }
      const isNew = !this.#queues.has(key)
      this.#queues.set(key, queue)
      queue.pending.add(one)
      // A call that must not wait for its own key does not wait for a lane either.
      if (isNew && waitMs === 0) void this.#run([this.#take(queue, this.#maxBatch)])
      else if (queue.inFlight < this.#maxInFlight) {
        this.#ready.add(queue)
        this.#start()
      }
      if (!queue.pending.has(one) || waitMs === Number.POSITIVE_INFINITY) return
      one.timer = setTimeout(() => {
        queue.pending.delete(one) // guard: batch.timed-out-not-sent
        if (queue.pending.size === 0) this.#ready.delete(queue)
        this.#forgetIdle(queue)
        reject(new BusyError(subject, waitMs, RETRY_MS)) // guard: batch.wait-bound
      }, waitMs)
    })
  }

  #start(): void {
    if (!this.#options.gathersTick) {
      this.#sendReady()
      return
    }
    if (this.#isScheduled) return
    this.#isScheduled = true
    // This runs after the callers of the last statement have resumed, so that their next calls are gathered too.
    process.nextTick(() => {
      this.#isScheduled = false
      this.#sendReady()
    })
  }

  #sendReady(): void {
    while (this.#ready.size > 0 && this.#lanes < this.#maxLanes) void this.#run(this.#collect())
  }

  /** Takes the next batch of one key, or of all ready keys if they can share a statement. */
  #collect(): Group<I, R>[] {
    const groups: Group<I, R>[] = []
    let capacity = this.#maxBatch
    for (const queue of this.#ready) {
      const group = this.#take(queue, capacity)
      groups.push(group)
      capacity -= group.batch.length
      if (!this.#options.sendMany || capacity === 0) break
    }
    return groups
  }

  #take(queue: Queue<I, R>, max: number): Group<I, R> {
    let batch: Pending<I, R>[] = []
    for (const one of queue.pending) if (batch.push(one) === max) break // guard: batch.max-size
    const { countFitting } = this.#options
    if (countFitting) batch = batch.slice(0, countFitting(batch.map(({ item }) => item)))
    for (const one of batch) {
      clearTimeout(one.timer)
      queue.pending.delete(one)
    }
    queue.inFlight++
    // guard: batch.key-once
    if (queue.pending.size === 0 || queue.inFlight === this.#maxInFlight) this.#ready.delete(queue)
    return { queue, batch }
  }

  async #run(groups: readonly Group<I, R>[]): Promise<void> {
    const leave = this.#enterLane()
    const unsettled = groups.length === 1 ? groups : await this.#settleMany(groups)
    for (const group of groups) if (!unsettled.includes(group)) this.#release(group.queue)
    // The unsettled groups wait for locks of other callers.
    if (groups.length > 1) leave()
    await Promise.all(
      unsettled.map(({ queue, batch }) => this.#settle(batch).then(() => this.#release(queue))),
    )
    leave()
    this.#start()
  }

  #enterLane(): () => void {
    this.#lanes++
    const leave = () => {
      if (!isInside) return
      isInside = false
      clearTimeout(timer)
      this.#lanes--
      this.#start()
    }
    let isInside = true
    const timer = this.#options.sendMany ? setTimeout(leave, LANE_MS) : undefined
    return leave
  }

  #release(queue: Queue<I, R>): void {
    queue.inFlight--
    if (queue.pending.size > 0) this.#ready.add(queue)
    else this.#forgetIdle(queue)
  }

  #forgetIdle(queue: Queue<I, R>): void {
    if (queue.pending.size === 0 && queue.inFlight === 0) this.#queues.delete(queue.key)
  }

  /** Sends the batch of one key, and settles the calls. Never rejects. */
  async #settle(batch: readonly Pending<I, R>[]): Promise<void> {
    try {
      const leftMs = Math.max(...batch.map(({ until }) => until)) - performance.now()
      const items = batch.map(({ item }) => item)
      settle(batch, await this.#send(items, Math.max(0, Math.ceil(leftMs))))
    } catch (error) {
      // guard: batch.bad-item-alone
      if (batch.length === 1 || !isOfOneItem(error)) reject(batch, error)
      else for (const one of batch) await this.#settle([one])
    }
  }

  /** Returns the groups that must be sent alone: their key was locked, or the server refused the statement. */
  async #settleMany(groups: readonly Group<I, R>[]): Promise<readonly Group<I, R>[]> {
    try {
      const results = await this.#options.sendMany?.(groups.map(({ batch }) => batch.map(({ item }) => item)))
      return groups.filter(({ batch }, n) => {
        const result = results?.[n]
        if (result) settle(batch, result)
        return !result // guard: batch.retry-locked
      })
    } catch (error) {
      // guard: batch.split-refused
      if (wasRefused(error)) return groups
      for (const { batch } of groups) reject(batch, error)
      return []
    }
  }
}

/** True if one of the items may be the reason. A timeout is that of a slow server, which must not get the items one by one. */
const isOfOneItem = (error: unknown): boolean =>
  wasRefused(error) && !(error instanceof StatementTimeoutError) // guard: batch.timeout-of-all

function settle<I, R>(batch: readonly Pending<I, R>[], results: readonly (R | Error)[]): void {
  const mismatch =
    results.length === batch.length
      ? undefined
      : new RangeError(`Sent ${batch.length} items, and got ${results.length} results.`)
  for (const [n, one] of batch.entries()) {
    const result = mismatch ?? (results[n] as R | Error) // guard: batch.answer-order
    if (result instanceof Error) reject([one], result)
    else one.resolve(result)
  }
}

/** A `BusyError` gets the time that each call has waited, which is longer than its statement waited. */
function reject<I, R>(batch: readonly Pending<I, R>[], error: unknown): void {
  for (const one of batch) {
    if (!(error instanceof BusyError)) one.reject(error)
    else {
      const { subject, retryAfterMs, cause } = error
      const waitedMs = Math.max(error.waitedMs, Math.round(performance.now() - one.since))
      one.reject(new BusyError(subject, waitedMs, retryAfterMs, { cause }))
    }
  }
}
