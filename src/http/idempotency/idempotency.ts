import type { Claim } from '../../claims/claim.js'
import type { AmbiguousVerdict, OnceResult } from '../../claims/once/once-spec.js'
import type { Dibs } from '../../dibs.js'
import { DibsError } from '../../errors.js'
import { databaseOf } from '../../postgres/database-of.js'
import { type EventOrigin, emit } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { makeProblem, type ProblemStyle, problemResponse } from '../problem.js'
import type { Exchange, Verdict } from './exchange.js'
import { explainError } from './explain-error.js'
import { HandlerRun } from './handler-run.js'
import type { IdempotencyOptions } from './idempotency-options.js'
import { type ReadIdempotencyOptions, readIdempotencyOptions } from './read-idempotency-options.js'
import { Claimed } from './request-claim.js'
import { identifyRequest, readKey } from './request-identity.js'
import { pathOf } from './request-scope.js'
import { type ResponseParts, readResponse, type StoredResponse } from './response-parts.js'
import { MAX_UNSTORED_BYTES, ResponseNotStored, ResponseStore, responseNotStored } from './response-store.js'
import {
  type OnceRequest,
  runInOwnTransaction,
  runJoined,
  runLeased,
  runOnceInOwnTransaction,
  transactionNotCalled,
} from './run-once.js'
import type { UnstorableResponseError } from './unstorable-response-error.js'

/** The middleware without a framework: decides about each request, and runs the handler of those that were not carried out before. */
export class Idempotency<R> {
  readonly #dibs: Dibs
  readonly #options: ReadIdempotencyOptions<R>
  readonly #responses: ResponseStore<R>
  readonly #origin: EventOrigin

  constructor(dibs: Dibs, options: IdempotencyOptions<R, unknown>) {
    this.#origin = databaseOf(dibs).origin
    this.#dibs = dibs
    this.#options = readIdempotencyOptions(options)
    this.#responses = new ResponseStore(this.#options)
  }

  /** For adapters that read the body of a request themselves. */
  get maxRequestBytes(): number {
    return this.#options.maxRequestBytes
  }

  /** For adapters that respond with problems themselves. */
  get style(): ProblemStyle {
    return this.#options.style
  }

  /** Throws only errors of the application: those that it threw, and those about its own mistakes. */
  async answer(exchange: Exchange<R>): Promise<Verdict> {
    if (!this.#options.methods.includes(exchange.method.toUpperCase())) return { kind: 'pass' }
    const handler = new HandlerRun(exchange, this.#options.deadlineMs)
    let key: string | undefined
    try {
      await exchange.prepare?.()
      handler.start()
      key = await readKey(exchange, this.#options)
      return await (key === undefined ? this.#runWithoutKey(handler) : this.#runWithKey(handler, key))
    } catch (caught) {
      const error = handler.responseError ?? caught
      if (error instanceof ResponseNotStored) return { kind: 'handled', parts: error.parts }
      return { kind: 'replaced', response: this.#explain(error, handler, key) }
    }
  }

  #explain(error: unknown, handler: HandlerRun<R>, key: string | undefined): Response {
    const progress = {
      hasRun: handler.hasRun,
      hasKey: key !== undefined,
      isLeased: this.#options.mode === 'leased',
      mustExplain: !handler.canThrow(error),
    }
    const explained = handler.handlerError === error ? undefined : explainError(error, progress)
    if (!explained) throw error
    const { style } = this.#options
    const problem = makeProblem(explained.name, explained, style)
    if (problem.status >= 500 || explained.cause)
      this.#emitFailure(explained.name, handler.exchange, explained.cause ?? error)
    const response = problemResponse(problem, style)
    if (error instanceof DibsError && 'replayed' in error && error.replayed) markReplayed(response)
    return response
  }

  #emitFailure(problem: string, { method, target }: Exchange<R>, error: unknown): void {
    emit('dibs:http.failed', { ...this.#origin, problem, method, path: pathOf(target), error })
  }

  async #runWithKey(handler: HandlerRun<R>, key: string): Promise<Verdict> {
    const { exchange } = handler
    const identity = await identifyRequest(exchange, key, this.#options)
    let own: ResponseParts | undefined
    const runHandler = async (claimed: Claimed<unknown>): Promise<StoredResponse> => {
      const parts = await handler.run(claimed, this.#responses.maxBytes)
      const stored = await handler.judge(() => this.#responses.toStored(exchange, parts))
      own = parts
      return stored
    }
    const request = { dibs: this.#dibs, identity, runHandler, leftMs: () => handler.leftMs }
    const { value, replayed } = await this.#runOnce(handler, request)
    const stored = value as StoredResponse
    if (own && stored.reference === undefined && !replayed) return { kind: 'handled', parts: own }
    const response = await this.#responses.toResponse(stored, exchange)
    return { kind: 'replaced', response: replayed ? markReplayed(response) : response }
  }

  #runOnce(handler: HandlerRun<R>, request: OnceRequest): Promise<OnceResult<unknown>> {
    const { mode, transaction } = this.#options
    if (mode === 'leased')
      return runLeased(request, this.#options, {
        resolveAmbiguous: (claim) => this.#resolveAmbiguous(handler.exchange, claim),
        storeInstead: (error) => {
          handler.responseError = undefined
          return this.#toProblem(error, handler.exchange)
        },
      })
    return transaction
      ? runOnceInOwnTransaction(request, this.#options, transaction)
      : runJoined(request, this.#options)
  }

  async #resolveAmbiguous(exchange: Exchange<R>, claim: Claim): Promise<AmbiguousVerdict> {
    const { onAmbiguous } = this.#options
    if (typeof onAmbiguous !== 'function') return onAmbiguous
    const verdict = await onAmbiguous(claim, exchange.source)
    if (typeof verdict === 'string') return verdict
    const parts = await readResponse(verdict, this.#responses.maxBytes)
    return { outcome: await this.#responses.toStored(exchange, parts, true) }
  }

  /** The problem that is stored in place of the response. The work is done, so it must not run again because of its response. */
  #toProblem(error: UnstorableResponseError, exchange: Exchange<R>): StoredResponse {
    const { style } = this.#options
    const detail =
      'The request is done, but its response could not be stored. The log of the service has the reason.'
    const problem = makeProblem('responseNotKept', { detail, state: 'done' }, style)
    this.#emitFailure('responseNotKept', exchange, error)
    return {
      status: problem.status,
      headers: [['content-type', 'application/problem+json']],
      text: JSON.stringify(style.body ? style.body(problem) : problem),
    }
  }

  /** Runs a request that has no key and needs none: each repetition runs the handler again. */
  async #runWithoutKey(handler: HandlerRun<R>): Promise<Verdict> {
    const { mode, transaction, stores, keepsWrites } = this.#options
    if (mode === 'leased') return { kind: 'pass', claimed: new Claimed(undefined, {}) }
    let own: ResponseParts | undefined
    const runHandler = async (tx: unknown): Promise<void> => {
      const claimed = new Claimed(undefined, { tx, transaction })
      const parts = await handler.run(claimed, () => MAX_UNSTORED_BYTES)
      await handler.judge(async () => {
        const isKept = stores(parts.status) && keepsWrites(parts.status)
        if (!isKept || parts.body === null) throw responseNotStored(parts)
      })
      own = parts
    }
    if (transaction) {
      const work = async (handle: unknown, tx: Tx): Promise<void> => {
        await runHandler(handle)
        // Fails if the handler ignored the failure of a statement.
        await tx.query('select 1') // guard: http.failed-transaction
      }
      await runInOwnTransaction(transaction, work, () => handler.leftMs)
    } else {
      const deadlineMs = Math.max(1, Math.floor(handler.leftMs))
      await this.#dibs.transaction((tx: Transaction) => runHandler(tx), { deadlineMs })
    }
    if (own) return { kind: 'handled', parts: own }
    throw transactionNotCalled()
  }
}

function markReplayed(response: Response): Response {
  response.headers.set('idempotency-replayed', 'true')
  return response
}
