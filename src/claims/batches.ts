import { BusyError, ConstraintViolationError, DatabaseError, StatementTimeoutError } from '../errors.js'

const RETRY_MS = 100

/** How many statements may be on their way before what comes for other keys is gathered too. */
const LANES = 3

/** How long one counts as on its way. After that it waits for a row that another has, and holds up nobody else. */
const LANE_MS = 50

interface Gathered<I, A> {
  readonly item: I
  readonly since: number
  /** By when its turn must have come, on this process's own clock. */
  readonly until: number
  readonly resolve: (answer: A) => void
  readonly reject: (error: unknown) => void
  timer?: NodeJS.Timeout
}

/** What goes together for one key. */
interface Group<I, A> {
  readonly key: string
  readonly batch: readonly Gathered<I, A>[]
}

/**
 * Answers each item, in their order; with an error what failed for itself. It is given the longest that any of them may still
 * wait.
 */
export type SendBatch<I, A> = (items: readonly I[], waitMs: number) => Promise<readonly (A | Error)[]>

/** The same for several keys, without a wait: undefined for a key that another has locked, which is then sent for itself. */
export type SendBatches<I, A> = (
  groups: readonly (readonly I[])[],
) => Promise<readonly (readonly (A | Error)[] | undefined)[]>

/**
 * Collects what comes while a statement for the same key is on its way, and sends it as one. Nobody waits to be collected: the
 * first goes at once, and those after it would have waited in the database for the same row, each on a connection. With
 * `sendMany`, keys share statements too once a few are on their way: one commit for all of them.
 */
export class Batches<I, A> {
  readonly #send: SendBatch<I, A>
  readonly #sendMany: SendBatches<I, A> | undefined
  readonly #most: number
  /** What has gathered, by key: for as long as a statement for it is on its way, or waits for a lane. */
  readonly #gathering = new Map<string, Set<Gathered<I, A>>>()
  /** Keys of which nothing is on its way, and something wants to be. */
  readonly #ready = new Set<string>()
  #lanes = 0

  constructor(
    send: SendBatch<I, A>,
    { most = 100, sendMany }: { most?: number; sendMany?: SendBatches<I, A> } = {},
  ) {
    this.#send = send
    this.#sendMany = sendMany
    this.#most = most
  }

  /** How many keys have a statement on its way, or wait for one. */
  get size(): number {
    return this.#gathering.size
  }

  /** Waits at most `waitMs` for its turn, then `BusyError`. */
  add(key: string, item: I, waitMs: number, subject: string): Promise<A> {
    return new Promise((resolve, reject) => {
      const since = performance.now()
      const one: Gathered<I, A> = { item, since, until: since + waitMs, resolve, reject }
      const others = this.#gathering.get(key) ?? new Set()
      others.add(one)
      if (!this.#gathering.has(key)) {
        this.#gathering.set(key, others)
        this.#ready.add(key)
        // Whoever waits for nobody does not wait for other keys either.
        if (waitMs === 0) void this.#run([this.#gather(key, this.#most)])
        else this.#start()
        if (!others.has(one)) return
      }
      one.timer = setTimeout(() => {
        others.delete(one)
        if (others.size === 0 && this.#ready.delete(key)) this.#gathering.delete(key)
        reject(new BusyError(subject, waitMs, RETRY_MS))
      }, waitMs)
    })
  }

  #start(): void {
    const lanes = this.#sendMany ? LANES : Number.POSITIVE_INFINITY
    while (this.#ready.size > 0 && this.#lanes < lanes) void this.#run(this.#collect())
  }

  /** What goes next: of one key, or of all that are ready where these can go together. */
  #collect(): Group<I, A>[] {
    const groups: Group<I, A>[] = []
    let left = this.#most
    for (const key of this.#ready) {
      const group = this.#gather(key, left)
      groups.push(group)
      left -= group.batch.length
      if (!this.#sendMany || left === 0) break
    }
    return groups
  }

  #gather(key: string, most: number): Group<I, A> {
    const others = this.#gathering.get(key)
    const batch = [...(others ?? [])].slice(0, most)
    for (const one of batch) {
      clearTimeout(one.timer)
      others?.delete(one)
    }
    this.#ready.delete(key)
    return { key, batch }
  }

  async #run(groups: readonly Group<I, A>[]): Promise<void> {
    const leave = this.#enterLane()
    const undecided = groups.length === 1 ? groups : await this.#settleMany(groups)
    for (const group of groups) if (!undecided.includes(group)) this.#release(group.key)
    // These wait for someone else.
    if (groups.length > 1) leave()
    await Promise.all(
      undecided.map((group) => this.#settle(group.batch).then(() => this.#release(group.key))),
    )
    leave()
    this.#start()
  }

  #enterLane(): () => void {
    this.#lanes++
    const leave = () => {
      if (!isIn) return
      isIn = false
      clearTimeout(timer)
      this.#lanes--
      this.#start()
    }
    let isIn = true
    const timer = setTimeout(leave, LANE_MS)
    return leave
  }

  /** Nothing of this key is on its way any more. */
  #release(key: string): void {
    if (this.#gathering.get(key)?.size) this.#ready.add(key)
    else this.#gathering.delete(key)
  }

  /** Never fails: whoever is in the batch is told, and those who gathered meanwhile go on. */
  async #settle(batch: readonly Gathered<I, A>[]): Promise<void> {
    try {
      const leftMs = Math.max(...batch.map(({ until }) => until)) - performance.now()
      const items = batch.map(({ item }) => item)
      tell(batch, await this.#send(items, Math.max(0, Math.ceil(leftMs))))
    } catch (error) {
      refuse(batch, error)
    }
  }

  /** Returns those that must be sent for themselves: they would have had to wait, or one of them has failed all. */
  async #settleMany(groups: readonly Group<I, A>[]): Promise<readonly Group<I, A>[]> {
    try {
      const answers = await this.#sendMany?.(groups.map(({ batch }) => batch.map(({ item }) => item)))
      return groups.filter(({ batch }, n) => {
        const answered = answers?.[n]
        if (answered) tell(batch, answered)
        return !answered
      })
    } catch (error) {
      // The server has refused it, and nothing of it was done.
      if (refusals.some((type) => error instanceof type)) return groups
      for (const { batch } of groups) refuse(batch, error)
      return []
    }
  }
}

/** What the server says of a statement that it has not done. */
const refusals = [DatabaseError, ConstraintViolationError, StatementTimeoutError]

function tell<I, A>(batch: readonly Gathered<I, A>[], answers: readonly (A | Error)[]): void {
  const mistake =
    answers.length === batch.length
      ? undefined
      : new RangeError(`${batch.length} were sent together, and ${answers.length} answered`)
  for (const [n, one] of batch.entries()) {
    const answer = mistake ?? (answers[n] as A | Error)
    if (answer instanceof Error) refuse([one], answer)
    else one.resolve(answer)
  }
}

/** Each has waited for as long as it was here, not for as long as the statement was on its way that it went with. */
function refuse<I, A>(batch: readonly Gathered<I, A>[], error: unknown): void {
  for (const { since, reject } of batch) {
    if (!(error instanceof BusyError)) reject(error)
    else {
      const { subject, retryAfterMs, cause } = error
      const waitedMs = Math.max(error.waitedMs, Math.round(performance.now() - since))
      reject(new BusyError(subject, waitedMs, retryAfterMs, { cause }))
    }
  }
}
