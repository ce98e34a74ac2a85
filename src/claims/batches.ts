import { BusyError } from '../errors.js'

const RETRY_MS = 100

interface Gathered<I, A> {
  readonly item: I
  /** By when its turn must have come, on this process's own clock. */
  readonly until: number
  readonly resolve: (answer: A) => void
  readonly reject: (error: unknown) => void
  timer?: NodeJS.Timeout
}

/**
 * Answers each item, in their order; with an error what failed for itself. It is given the longest that any of them may still
 * wait.
 */
export type SendBatch<I, A> = (items: readonly I[], waitMs: number) => Promise<readonly (A | Error)[]>

/**
 * Collects what comes while a statement for the same key is on its way, and sends it as one. Nobody waits to be collected: the
 * first goes at once, and those after it would have waited in the database for the same row, each on a connection.
 */
export class Batches<I, A> {
  readonly #send: SendBatch<I, A>
  readonly #most: number
  /** By key, for as long as a statement for it is on its way. */
  readonly #gathering = new Map<string, Set<Gathered<I, A>>>()

  constructor(send: SendBatch<I, A>, most = 100) {
    this.#send = send
    this.#most = most
  }

  /** How many keys have a statement on its way. */
  get size(): number {
    return this.#gathering.size
  }

  /** Waits at most `waitMs` for its turn, then `BusyError`. */
  add(key: string, item: I, waitMs: number, subject: string): Promise<A> {
    return new Promise((resolve, reject) => {
      const one: Gathered<I, A> = { item, until: performance.now() + waitMs, resolve, reject }
      const others = this.#gathering.get(key)
      if (others === undefined) {
        this.#gathering.set(key, new Set())
        void this.#run(key, one)
        return
      }
      one.timer = setTimeout(() => {
        others.delete(one)
        reject(new BusyError(subject, waitMs, RETRY_MS))
      }, waitMs)
      others.add(one)
    })
  }

  async #run(key: string, first: Gathered<I, A>): Promise<void> {
    let batch = [first]
    while (batch.length > 0) {
      await this.#settle(batch)
      batch = this.#next(key)
    }
    this.#gathering.delete(key)
  }

  #next(key: string): Gathered<I, A>[] {
    const others = this.#gathering.get(key)
    const batch = [...(others ?? [])].slice(0, this.#most)
    for (const one of batch) {
      clearTimeout(one.timer)
      others?.delete(one)
    }
    return batch
  }

  /** Never fails: whoever is in the batch is told, and those who gathered meanwhile go on. */
  async #settle(batch: readonly Gathered<I, A>[]): Promise<void> {
    try {
      const leftMs = Math.max(...batch.map(({ until }) => until)) - performance.now()
      const answers = await this.#send(
        batch.map(({ item }) => item),
        Math.max(0, Math.ceil(leftMs)),
      )
      if (answers.length !== batch.length) {
        throw new RangeError(`${batch.length} were sent together, and ${answers.length} answered`)
      }
      answers.forEach((answer, n) => {
        if (answer instanceof Error) batch[n]?.reject(answer)
        else batch[n]?.resolve(answer)
      })
    } catch (error) {
      for (const { reject } of batch) reject(error)
    }
  }
}
