import type { Claim } from '../claims/claim.js'
import type { AmbiguousVerdict, OnceResult } from '../claims/once-spec.js'
import type { Dibs } from '../dibs.js'
import { DibsError, InvalidInputError } from '../errors.js'
import { type EventOrigin, emit } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { databaseOf } from '../postgres/instances.js'
import type { Json } from '../postgres/json.js'
import { nameGiven } from '../postgres/name-given.js'
import type { Transaction } from '../postgres/transaction-types.js'
import {
  type Address,
  carryOutInside,
  carryOutJoined,
  carryOutLeased,
  runInside,
  type Work,
} from './carry-out.js'
import { Claimed } from './claimed.js'
import { type BytesOf, type Exchange, NotKept, type Verdict } from './exchange.js'
import { explainError, Refusal } from './explain-error.js'
import { HandlerRun } from './handler-run.js'
import { readIdempotencyKey } from './idempotency-key.js'
import {
  DEFAULT_RESPONSE_BYTES,
  type IdempotencyOptions,
  type LargeResponses,
  type ReadOptions,
  readOptions,
} from './options.js'
import { makeProblem, type ProblemStyle, problemResponse } from './problem.js'
import { normalizeTarget, pathOf, readPrincipal, scopeOf } from './request-address.js'
import { fingerprintRequest } from './request-fingerprint.js'
import {
  fromStored,
  isStream,
  type ResponseParts,
  readResponse,
  type StoredResponse,
  toByteStream,
  toResponse,
  toStored,
} from './response-parts.js'
import { refuseStream, UnstorableResponse } from './unstorable-response.js'

/**
 * The middleware without its framework: decides about one request after another, and lets a handler go for those that are
 * to be carried out.
 */
export class Idempotency<R> {
  readonly #dibs: Dibs
  readonly #options: ReadOptions<R>
  readonly #origin: EventOrigin

  constructor(dibs: Dibs, options: IdempotencyOptions<R, unknown>) {
    this.#origin = databaseOf(dibs).origin
    this.#dibs = dibs
    this.#options = readOptions(options)
  }

  /** For those who read the body of a request themselves. */
  get maxRequestBytes(): number {
    return this.#options.maxRequestBytes
  }

  /** For those who answer themselves. */
  get style(): ProblemStyle {
    return this.#options.style
  }

  appliesTo(method: string): boolean {
    return this.#options.methods.includes(method.toUpperCase())
  }

  /** What to send for a request. Throws only what is a mistake in the application, or thrown by it. */
  async answer(exchange: Exchange<R>): Promise<Verdict> {
    if (!this.appliesTo(exchange.method)) return { kind: 'pass' }
    const handler = new HandlerRun(exchange, this.#options.deadlineMs)
    let key: string | undefined
    try {
      await exchange.prepare?.()
      handler.begin()
      key = await this.#readKey(exchange)
      return await (key === undefined ? this.#withoutKey(handler) : this.#withKey(handler, key))
    } catch (caught) {
      const error = handler.refused ?? caught
      if (error instanceof NotKept) return { kind: 'own', parts: error.parts }
      return { kind: 'other', response: this.#explain(error, handler, key) }
    }
  }

  #explain(error: unknown, handler: HandlerRun<R>, key: string | undefined): Response {
    const known = {
      hasRun: handler.hasRun,
      hasKey: key !== undefined,
      isLeased: this.#options.mode === 'leased',
      mustExplain: !handler.mayThrow(error),
    }
    const explained = handler.threw === error ? undefined : explainError(error, known)
    if (!explained) throw error
    const { style } = this.#options
    const problem = makeProblem(explained.name, explained, style)
    if (problem.status >= 500 || explained.cause)
      this.#tell(explained.name, handler.exchange, explained.cause ?? error)
    const response = problemResponse(problem, style)
    if (error instanceof DibsError && 'replayed' in error && error.replayed) markReplayed(response)
    return response
  }

  /** To those who run the service. */
  #tell(problem: string, { method, target }: Exchange<R>, error: unknown): void {
    emit('dibs:http.failed', { ...this.#origin, problem, method, path: pathOf(target), error })
  }

  async #readKey(exchange: Exchange<R>): Promise<string | undefined> {
    const { key: find, header, keyPattern, required } = this.#options
    const found: unknown = find ? await find(exchange.source) : exchange.header(header)
    if (found === undefined || found === null) {
      if (!required) return undefined
      const where = find
        ? 'The request does not say which one it is.'
        : `Send a header \`${header}\` with a key of your own.`
      throw new Refusal({
        name: 'keyMissing',
        state: 'not started',
        detail: `${where} It must be the same for each repetition of this request, and another for each new one.`,
      })
    }
    // A key that the application has found is taken as it is.
    if (find && typeof found !== 'string' && typeof found !== 'number')
      throw new InvalidInputError('key', `must say a text or a number, not ${nameGiven(found)}`)
    const read = readIdempotencyKey(find ? JSON.stringify(String(found)) : String(found), keyPattern)
    if ('key' in read) return read.key
    throw new Refusal({ name: 'keyInvalid', state: 'not started', detail: `The key ${read.problem}.` })
  }

  async #withKey(handler: HandlerRun<R>, key: string): Promise<Verdict> {
    const { exchange } = handler
    const address = await this.#addressOf(exchange, key)
    let own: ResponseParts | undefined
    const carryOut = async (claimed: Claimed<unknown>): Promise<StoredResponse> => {
      const parts = await handler.run(claimed, this.#mostBytes)
      const stored = await handler.noting(() => this.#toOutcome(exchange, parts))
      own = parts
      return stored
    }
    const work = { dibs: this.#dibs, address, carryOut, leftMs: () => handler.leftMs }
    const result = await this.#carryOut(handler, work)
    const stored = result.value as StoredResponse
    const isLarge = stored.reference !== undefined
    if (own && !isLarge && !result.replayed) return { kind: 'own', parts: own }
    const response = isLarge ? await this.#rebuild(stored, exchange) : toResponse(fromStored(stored))
    return { kind: 'other', response: result.replayed ? markReplayed(response) : response }
  }

  readonly #mostBytes: BytesOf = (status) => {
    const { stores, maxResponseBytes, large } = this.#options
    if (!stores(status)) return MAX_PASSED_BYTES
    // What is refused has nothing that it could be made again from.
    return large && status >= 400 ? Math.max(maxResponseBytes, DEFAULT_RESPONSE_BYTES) : maxResponseBytes
  }

  async #addressOf(exchange: Exchange<R>, key: string): Promise<Address> {
    const { method } = exchange
    const { scope, fingerprint, requestId, normalizePath } = this.#options
    const target = normalizeTarget(exchange.target, normalizePath)
    const principal = scope === 'anonymous' ? [] : readPrincipal(await scope(exchange.source))
    return {
      scope: scopeOf(principal, method, pathOf(target)),
      key,
      fingerprint: fingerprint
        ? ((await fingerprint(exchange.source)) ?? null)
        : await this.#fingerprintOf(exchange, target),
      requestId: requestId?.(exchange.source),
    }
  }

  async #fingerprintOf(exchange: Exchange<R>, target: string): Promise<string> {
    const { method } = exchange
    const headers = this.#options.fingerprintHeaders.map(
      (name) => [name, exchange.header(name) ?? ''] as const,
    )
    return await fingerprintRequest({
      method,
      target,
      headers,
      type: exchange.header('content-type') ?? '',
      encoding: exchange.header('content-encoding') ?? '',
      body: await exchange.body(),
      mostBytes: this.maxRequestBytes,
    })
  }

  #carryOut(handler: HandlerRun<R>, work: Work): Promise<OnceResult<unknown>> {
    const options = this.#options
    const { exchange } = handler
    if (options.mode === 'leased')
      return carryOutLeased(work, options, {
        lookInto: (claim) => this.#lookInto(exchange, claim),
        unkept: (error) => {
          handler.refused = undefined // it is stored, or it will be said why not
          return this.#toUnkept(error, exchange)
        },
      })
    const { transaction } = options
    return transaction ? carryOutInside(work, options, transaction) : carryOutJoined(work, options)
  }

  async #lookInto(exchange: Exchange<R>, claim: Claim): Promise<AmbiguousVerdict> {
    const { onAmbiguous } = this.#options
    if (typeof onAmbiguous !== 'function') return onAmbiguous
    const verdict = await onAmbiguous(claim, exchange.source)
    if (typeof verdict === 'string') return verdict
    return { outcome: await this.#toOutcome(exchange, await readResponse(verdict, this.#mostBytes), true) }
  }

  /** The work is done: what cannot be kept of it must not make it be done again. */
  #toUnkept(error: UnstorableResponse, exchange: Exchange<R>): StoredResponse {
    const { style } = this.#options
    const detail = 'It was done, and its response could not be stored. The log of the service has the reason.'
    const problem = makeProblem('responseNotKept', { detail, state: 'done' }, style)
    this.#tell('responseNotKept', exchange, error)
    const headers: [string, string][] = [['content-type', 'application/problem+json']]
    return {
      status: problem.status,
      headers,
      text: JSON.stringify(style.body ? style.body(problem) : problem),
    }
  }

  /** What is to be stored of a response. */
  async #toOutcome(
    exchange: Exchange<R>,
    parts: ResponseParts,
    hasBegun = exchange.hasBegun?.() ?? true,
  ): Promise<StoredResponse> {
    const { stores, replayHeaders, large } = this.#options
    if (!hasBegun || !canReplay(parts.status) || !stores(parts.status)) throw notKept(parts)
    if (isStream(parts.headers)) throw refuseStream()
    if (parts.body) return toStored(parts, replayHeaders, parts.body)
    if (large && parts.status < 400) {
      const reference = await this.#referTo(large, exchange, parts)
      return toStored(parts, replayHeaders, { reference: reference ?? null })
    }
    throw new UnstorableResponse(
      `The response is longer than ${this.#options.maxResponseBytes} bytes. Raise \`maxResponseBytes\`, or say with \`large\` how to make it again.`,
    )
  }

  /** The handler has done its work: what fails now must not make it be done again. */
  async #referTo(large: LargeResponses<R>, exchange: Exchange<R>, parts: ResponseParts): Promise<Json> {
    try {
      return await large.reference(parts, exchange.source)
    } catch (cause) {
      throw new UnstorableResponse('The response is too long, and `large.reference` has failed.', { cause })
    }
  }

  async #rebuild(stored: StoredResponse, exchange: Exchange<R>): Promise<Response> {
    const { large } = this.#options
    const rebuild = async (): Promise<Response> => {
      if (large) return await large.rebuild(stored.reference as Json, exchange.source)
      throw new InvalidInputError('large', 'must be given as long as responses are stored that were too long')
    }
    const rebuilt = await rebuild().catch((cause) => {
      const detail =
        'It is done, and its response could not be made again. Repeat the request, with the same key.'
      throw new Refusal({ name: 'failed', state: 'done', detail, cause })
    })
    const headers = new Headers(stored.headers.map(([name, value]): [string, string] => [name, value]))
    for (const [name, value] of rebuilt.headers) if (name !== 'set-cookie') headers.set(name, value)
    return new Response(rebuilt.body && toByteStream(rebuilt.body), { status: stored.status, headers })
  }

  /** A request that need not have a key: each time it comes, it is carried out. */
  async #withoutKey(handler: HandlerRun<R>): Promise<Verdict> {
    const { mode, transaction, stores, keepsWrites } = this.#options
    if (mode === 'leased') return { kind: 'pass', claimed: new Claimed(undefined, {}) }
    let own: ResponseParts | undefined
    const carryOut = async (tx: unknown): Promise<void> => {
      const parts = await handler.run(new Claimed(undefined, { tx, transaction }), () => MAX_PASSED_BYTES)
      await handler.noting(async () => {
        const isKept = stores(parts.status) && keepsWrites(parts.status)
        if (!isKept || parts.body === null) throw notKept(parts)
      })
      own = parts
    }
    const inside = async (handle: unknown, tx: Tx): Promise<void> => {
      await carryOut(handle)
      await tx.query('select 1') // fails if a statement has failed that nobody told of
    }
    if (transaction) await runInside(transaction, inside, () => handler.leftMs)
    else {
      const deadlineMs = Math.max(1, Math.floor(handler.leftMs))
      await this.#dibs.transaction((tx: Transaction) => carryOut(tx), { deadlineMs })
    }
    if (own) return { kind: 'own', parts: own }
    throw new InvalidInputError('transaction', 'must call the function that it is given, and wait for it')
  }
}

/** What is not stored is kept as well until all is committed, or undone. */
const MAX_PASSED_BYTES = 16 * 1_048_576

function notKept(parts: ResponseParts): Error {
  if (parts.body) return new NotKept(parts)
  return new UnstorableResponse(
    `The response is longer than ${MAX_PASSED_BYTES} bytes, and nothing of it can be sent before the transaction has ended.`,
    { isOutcome: false },
  )
}

/** `Response` has no others. */
const canReplay = (status: number): boolean => status >= 200 && status <= 599

function markReplayed(response: Response): Response {
  response.headers.set('idempotency-replayed', 'true')
  return response
}
