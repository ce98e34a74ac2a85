import { TransientError } from '../../errors.js'
import type { Exchange, MaxBytesFor } from './exchange.js'
import type { Claimed } from './request-claim.js'
import type { ResponseParts } from './response-parts.js'
import { ResponseNotStored } from './response-store.js'
import { UnstorableResponseError } from './unstorable-response-error.js'

/** Calls the handler of one request: only once in most frameworks, and never after the client got its response. */
export class HandlerRun<R> {
  readonly exchange: Exchange<R>
  readonly #deadlineMs: number
  #startedAt = performance.now()
  /** The error that the handler itself threw. */
  handlerError: unknown
  /** Why the response is not stored. A library's transaction may wrap this error, or call again. */
  responseError: ResponseNotStored | UnstorableResponseError | undefined
  hasRun = false

  constructor(exchange: Exchange<R>, deadlineMs: number) {
    this.exchange = exchange
    this.#deadlineMs = deadlineMs
  }

  /** Called when the request is complete: its deadline counts from now on. */
  start(): void {
    this.#startedAt = performance.now()
  }

  /** How long the client still waits. */
  get leftMs(): number {
    return Math.max(0, this.#startedAt + this.#deadlineMs - performance.now())
  }

  /** True if the framework can still handle this error. */
  canThrow(error: unknown): boolean {
    return !this.hasRun || this.exchange.isRepeatable || error === this.handlerError
  }

  async run(claimed: Claimed<unknown>, maxBytes: MaxBytesFor): Promise<ResponseParts> {
    if (this.responseError) throw this.responseError
    // guard: http.deadline
    if (this.leftMs === 0)
      throw new TransientError(
        'The claim came after the client got its response, so the handler was not called.',
      )
    // guard: http.once
    if (this.hasRun && !this.exchange.isRepeatable)
      throw new TransientError('The writes of the handler could not be committed, and it cannot run again.')
    this.hasRun = true
    try {
      return await this.exchange.run(claimed, maxBytes)
    } catch (error) {
      if (!(error instanceof UnstorableResponseError)) this.handlerError = error
      throw error
    }
  }

  /** Runs the function that judges the response, and remembers why the response is not stored. */
  async judge<T>(judge: () => Promise<T>): Promise<T> {
    try {
      return await judge()
    } catch (error) {
      if (error instanceof ResponseNotStored || error instanceof UnstorableResponseError)
        this.responseError = error
      throw error
    }
  }
}
