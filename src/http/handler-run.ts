import { TransientError } from '../errors.js'
import type { Claimed } from './claimed.js'
import { type BytesOf, type Exchange, NotKept } from './exchange.js'
import type { ResponseParts } from './response-parts.js'
import { UnstorableResponse } from './unstorable-response.js'

/** Lets the handler of one request go: most frameworks do that only once, and nobody does it when the client has its answer. */
export class HandlerRun<R> {
  readonly exchange: Exchange<R>
  readonly #deadlineMs: number
  #beganAt = performance.now()
  /** What the handler itself threw. */
  threw: unknown
  /** What its response was found to be; a library's transaction may wrap it, or try again. */
  refused: NotKept | UnstorableResponse | undefined
  #runs = 0

  constructor(exchange: Exchange<R>, deadlineMs: number) {
    this.exchange = exchange
    this.#deadlineMs = deadlineMs
  }

  /** The handler was let go, so that what became of the key is known. */
  get hasRun(): boolean {
    return this.#runs > 0
  }

  /** The request is here: from now on its time runs. */
  begin(): void {
    this.#beganAt = performance.now()
  }

  /** Until the client is answered in any case. */
  get leftMs(): number {
    return Math.max(0, this.#beganAt + this.#deadlineMs - performance.now())
  }

  /** There is still somebody who handles errors. */
  mayThrow(error: unknown): boolean {
    return !this.hasRun || this.exchange.isRepeatable || error === this.threw
  }

  async run(claimed: Claimed<unknown>, mostBytes: BytesOf): Promise<ResponseParts> {
    if (this.refused) throw this.refused
    if (this.leftMs === 0)
      throw new TransientError(
        'The claim came when the client had its answer, so the handler was not let go.',
      )
    if (this.hasRun && !this.exchange.isRepeatable)
      throw new TransientError(
        'What the handler did could not be committed, and it cannot be run again from its start.',
      )
    this.#runs++
    try {
      return await this.exchange.run(claimed, mostBytes)
    } catch (error) {
      if (!(error instanceof UnstorableResponse)) this.threw = error
      throw error
    }
  }

  /** Notes what a response was found to be. */
  async noting<T>(judge: () => Promise<T>): Promise<T> {
    try {
      return await judge()
    } catch (error) {
      if (error instanceof NotKept || error instanceof UnstorableResponse) this.refused = error
      throw error
    }
  }
}
