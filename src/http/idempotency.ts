import { createHash } from 'node:crypto'
import type { Claim } from '../claims/claim.js'
import { HeldClaim } from '../claims/held-claim.js'
import type { Json } from '../claims/json.js'
import { keyOf, MAX_KEY_BYTES } from '../claims/key.js'
import { WithoutWrites } from '../claims/once-joined.js'
import type { OnceResult } from '../claims/once-spec.js'
import type { Dibs } from '../dibs.js'
import { DibsError, InvalidInputError, TransientError } from '../errors.js'
import { type EventOrigin, emit } from '../postgres/events.js'
import { databaseOf } from '../postgres/instances.js'
import { nameGiven } from '../postgres/name-given.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { Claimed } from './claimed.js'
import {
  type BytesOf,
  type Exchange,
  NotKept,
  refuseStream,
  UnstorableResponse,
  type Verdict,
} from './exchange.js'
import { type Explained, explainError, Refusal } from './explain-error.js'
import { readIdempotencyKey } from './idempotency-key.js'
import { mistake } from './mistake.js'
import { type IdempotencyOptions, type ReadOptions, readOptions } from './options.js'
import { problemResponse, toProblem } from './problem.js'
import { fingerprintRequest } from './request-fingerprint.js'
import {
  fromStored,
  isStream,
  type ResponseParts,
  readResponse,
  type StoredResponse,
  toResponse,
  toStored,
} from './response-parts.js'

/** What a request comes to be known by. */
interface Address {
  readonly scope: string
  readonly key: string
  readonly fingerprint: unknown
  readonly requestId: string | undefined
}

/**
 * The middleware without its framework: decides about one request after another, and lets a handler go for those that are
 * to be carried out.
 */
export class Idempotency<R> {
  readonly #dibs: Dibs
  readonly #options: ReadOptions<R>
  readonly #origin: EventOrigin

  constructor(dibs: Dibs, options: IdempotencyOptions<R>) {
    this.#origin = databaseOf(dibs).origin
    this.#dibs = dibs
    this.#options = readOptions(options)
  }

  /** For those who read the body of a request themselves. */
  get maxRequestBytes(): number {
    return this.#options.maxRequestBytes
  }

  appliesTo(method: string): boolean {
    return this.#options.methods.includes(method.toUpperCase())
  }

  /** What to send for a request. Throws only what is a mistake in the application, or thrown by it. */
  async answer(exchange: Exchange<R>): Promise<Verdict> {
    if (!this.appliesTo(exchange.method)) return { kind: 'pass' }
    const handler = new HandlerRun(exchange)
    try {
      await exchange.prepare?.()
      const key = this.#readKey(exchange)
      return await (key === undefined ? this.#withoutKey(handler) : this.#withKey(handler, key))
    } catch (error) {
      if (error instanceof NotKept) return { kind: 'own', parts: error.parts }
      return { kind: 'other', response: this.#explain(error, handler) }
    }
  }

  #explain(error: unknown, handler: HandlerRun<R>): Response {
    const { method, target } = handler.exchange
    const explained = explainError(error) ?? (handler.mayThrow(error) ? undefined : unexplained)
    if (!explained || handler.threw === error) throw error
    const { style } = this.#options
    const problem = toProblem(explained.name, explained, style)
    if (problem.status >= 500) {
      const path = pathOf(target)
      emit('dibs:http.failed', { ...this.#origin, problem: explained.name, method, path, error })
    }
    const response = problemResponse(problem, style)
    if (error instanceof DibsError && 'replayed' in error && error.replayed) markReplayed(response)
    return response
  }

  #readKey(exchange: Exchange<R>): string | undefined {
    const { key: find, header, keyPattern, required } = this.#options
    const found = find ? find(exchange.source) : exchange.header(header)
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
    const read = readIdempotencyKey(find ? JSON.stringify(String(found)) : found, keyPattern)
    if ('key' in read) return read.key
    throw new Refusal({ name: 'keyInvalid', state: 'not started', detail: `The key ${read.problem}.` })
  }

  async #withKey(handler: HandlerRun<R>, key: string): Promise<Verdict> {
    const { exchange } = handler
    const address = await this.#addressOf(exchange, key)
    let own: ResponseParts | undefined
    const carryOut = async (claimed: Claimed<unknown>): Promise<StoredResponse> => {
      const parts = await handler.run(claimed, this.#mostBytes)
      const stored = await this.#toOutcome(exchange, parts)
      own = parts
      return stored
    }
    const result = await this.#claim(exchange, address, carryOut)
    const stored = result.value as StoredResponse
    const isLarge = stored.reference !== undefined
    if (own && !isLarge && !result.replayed) return { kind: 'own', parts: own }
    const response = isLarge ? await this.#rebuild(stored, exchange) : toResponse(fromStored(stored))
    return { kind: 'other', response: result.replayed ? markReplayed(response) : response }
  }

  readonly #mostBytes: BytesOf = (status) =>
    this.#options.stores(status) ? this.#options.maxResponseBytes : MAX_PASSED_BYTES

  async #addressOf(exchange: Exchange<R>, key: string): Promise<Address> {
    const { source, method, target } = exchange
    const { scope, fingerprint, requestId } = this.#options
    return {
      scope: scopeOf(scope === 'anonymous' ? [] : readPrincipal(await scope(source)), method, pathOf(target)),
      key,
      fingerprint: fingerprint ? await fingerprint(source) : await this.#fingerprintOf(exchange),
      requestId: requestId?.(source),
    }
  }

  async #fingerprintOf(exchange: Exchange<R>): Promise<string> {
    const { method, target } = exchange
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
    })
  }

  #claim(exchange: Exchange<R>, address: Address, carryOut: CarryOut): Promise<OnceResult<unknown>> {
    const { mode, transaction } = this.#options
    if (mode === 'leased') return this.#leased(exchange, address, carryOut)
    return transaction ? this.#inside(address, carryOut) : this.#joined(address, carryOut)
  }

  #joined(address: Address, carryOut: CarryOut): Promise<OnceResult<unknown>> {
    const { waitMs, keepMs, deadlineMs, keepsWrites } = this.#options
    const spec = { ...address, waitMs, keepMs, deadlineMs }
    return this.#dibs.onceDetailed(spec, async (tx): Promise<unknown> => {
      const stored = await carryOut(new Claimed(address.key, { tx }))
      return keepsWrites(stored.status) ? stored : new WithoutWrites(stored)
    })
  }

  /** In a transaction of the application's own library. */
  async #inside(address: Address, carryOut: CarryOut): Promise<OnceResult<unknown>> {
    const { waitMs, keepMs, keepsWrites, transaction } = this.#options
    let result: OnceResult<unknown> | undefined
    const running = transaction?.(async (tx, handle) => {
      result = await this.#dibs.onceDetailed(
        { ...address, waitMs, keepMs, tx },
        async (): Promise<unknown> => {
          await tx.query('savepoint dibs_request')
          const stored = await carryOut(new Claimed(address.key, { tx: handle }))
          if (!keepsWrites(stored.status)) await tx.query('rollback to savepoint dibs_request')
          await tx.query('release savepoint dibs_request')
          return stored
        },
      )
    })
    await this.#inTime(running ?? Promise.resolve(), 'unknown')
    if (result) return result
    throw mistake('transaction', 'must call the function that it is given, and wait for it')
  }

  #leased(exchange: Exchange<R>, address: Address, carryOut: CarryOut): Promise<OnceResult<unknown>> {
    const { waitMs, keepMs, leaseMs, maxAttempts, onAmbiguous } = this.#options
    let held: Claim | undefined
    const lookInto = async (claim: Claim) => {
      if (typeof onAmbiguous !== 'function') return onAmbiguous
      const verdict = await onAmbiguous(claim, exchange.source)
      return typeof verdict === 'string'
        ? verdict
        : { outcome: await this.#toOutcome(exchange, await readResponse(verdict, this.#mostBytes)) }
    }
    const running = this.#dibs.onceDetailed(
      {
        ...{ ...address, mode: 'leased', waitMs, keepMs, leaseMs, maxAttempts },
        onAmbiguous: typeof onAmbiguous === 'function' ? lookInto : onAmbiguous,
      },
      async (claim): Promise<unknown> => {
        held = claim
        try {
          return await carryOut(new Claimed(address.key, { claim }))
        } catch (error) {
          if (error instanceof UnstorableResponse) return this.#toUnkept(error, exchange)
          // It was refused before anything happened, so that also one who holds what is ambiguous may run it again.
          if (error instanceof NotKept && error.parts.status < 500)
            throw new TransientError(error.message, { cause: error })
          throw error
        }
      },
    )
    // The handler goes on, and its outcome is stored if it comes before the lease has run out.
    const waiting = this.#inTime(running, 'running', () => void (held instanceof HeldClaim && held.stop()))
    return waiting.catch((error) => {
      throw error instanceof TransientError && error.cause instanceof NotKept ? error.cause : error
    })
  }

  /** The work is done: what cannot be kept of it must not make it be done again. */
  #toUnkept(error: UnstorableResponse, { method, target }: Exchange<R>): StoredResponse {
    const { style } = this.#options
    const detail = 'It was done, and its response could not be stored. The log of the service has the reason.'
    const problem = toProblem('responseNotKept', { detail, state: 'done' }, style)
    emit('dibs:http.failed', {
      ...this.#origin,
      problem: 'responseNotKept',
      method,
      path: pathOf(target),
      error,
    })
    const headers: [string, string][] = [['content-type', 'application/problem+json']]
    return {
      status: problem.status,
      headers,
      text: JSON.stringify(style.body ? style.body(problem) : problem),
    }
  }

  /** Nobody waits for a handler for ever. */
  async #inTime<T>(running: Promise<T>, state: 'running' | 'unknown', whenLate?: () => void): Promise<T> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        whenLate?.()
        const detail = 'It is not done yet. Repeat the request, with the same key, to learn what came of it.'
        reject(new Refusal({ name: 'timedOut', state, detail, retryAfterMs: 1_000 }))
      }, this.#options.deadlineMs)
    })
    try {
      return await Promise.race([running, late])
    } finally {
      clearTimeout(timer)
    }
  }

  /** What is to be stored of a response. */
  async #toOutcome(exchange: Exchange<R>, parts: ResponseParts): Promise<StoredResponse> {
    const { stores, replayHeaders, large } = this.#options
    if (!stores(parts.status) || exchange.hasBegun?.() === false) throw notKept(parts)
    if (isStream(parts.headers)) throw refuseStream()
    if (parts.body) return toStored(parts, replayHeaders, parts.body)
    if (large) {
      const reference = await large.reference(parts, exchange.source)
      return toStored(parts, replayHeaders, { reference: reference ?? null })
    }
    throw new UnstorableResponse(
      `The response is longer than ${this.#options.maxResponseBytes} bytes. Raise \`maxResponseBytes\`, or say with \`large\` how to make it again.`,
    )
  }

  async #rebuild(stored: StoredResponse, { source }: Exchange<R>): Promise<Response> {
    const { large } = this.#options
    if (!large) throw mistake('large', 'must be given as long as responses are stored that were too long')
    const rebuilt = await large.rebuild(stored.reference as Json, source)
    const headers = new Headers(stored.headers.map(([name, value]): [string, string] => [name, value]))
    for (const [name, value] of rebuilt.headers) if (name !== 'set-cookie') headers.set(name, value)
    return new Response(rebuilt.body, { status: stored.status, headers })
  }

  /** A request that need not have a key: each time it comes, it is carried out. */
  async #withoutKey(handler: HandlerRun<R>): Promise<Verdict> {
    const { mode, transaction, deadlineMs, keepsWrites } = this.#options
    if (mode === 'leased') return { kind: 'pass', claimed: new Claimed(undefined, {}) }
    let own: ResponseParts | undefined
    const carryOut = async (tx: unknown): Promise<void> => {
      const parts = await handler.run(new Claimed(undefined, { tx }), () => MAX_PASSED_BYTES)
      if (!keepsWrites(parts.status) || parts.body === null) throw notKept(parts)
      own = parts
    }
    if (transaction)
      await this.#inTime(
        transaction((_, handle) => carryOut(handle)),
        'unknown',
      )
    else await this.#dibs.transaction((tx: Transaction) => carryOut(tx), { deadlineMs })
    if (own) return { kind: 'own', parts: own }
    throw mistake('transaction', 'must call the function that it is given, and wait for it')
  }
}

type CarryOut = (claimed: Claimed<unknown>) => Promise<StoredResponse>

/** What is not stored is kept as well until all is committed, or undone. */
const MAX_PASSED_BYTES = 16 * 1_048_576

function notKept(parts: ResponseParts): Error {
  if (parts.body) return new NotKept(parts)
  return new UnstorableResponse(
    `The response is longer than ${MAX_PASSED_BYTES} bytes, and nothing of it can be sent before the transaction has ended.`,
  )
}

/** Something of the application's own has failed after its handler was let go, which no framework can be told of any more. */
const unexplained: Explained = {
  name: 'failed',
  state: 'unknown',
  detail: 'The request may have been carried out. Repeat it, with the same key, to learn what came of it.',
}

/** Lets the handler of one request go: most frameworks do that only once. */
class HandlerRun<R> {
  readonly exchange: Exchange<R>
  /** What the handler itself threw. */
  threw: unknown
  #runs = 0

  constructor(exchange: Exchange<R>) {
    this.exchange = exchange
  }

  /** There is still somebody who handles errors. */
  mayThrow(error: unknown): boolean {
    return this.#runs === 0 || this.exchange.isRepeatable || error === this.threw
  }

  async run(claimed: Claimed<unknown>, mostBytes: BytesOf): Promise<ResponseParts> {
    if (++this.#runs > 1 && !this.exchange.isRepeatable)
      throw new TransientError(
        'What the handler did could not be committed, and it cannot be run again from its start.',
      )
    try {
      return await this.exchange.run(claimed, mostBytes)
    } catch (error) {
      if (!(error instanceof UnstorableResponse)) this.threw = error
      throw error
    }
  }
}

const pathOf = (target: string): string => target.split('?', 1)[0] as string

/** Whose keys, and what for. A path that is too long is told by its hash. */
function scopeOf(parts: readonly (string | number | bigint)[], method: string, path: string): string {
  try {
    const scope = ['http', ...parts, `${method} ${path}`] as const
    if (Buffer.byteLength(scope.join(':')) <= MAX_KEY_BYTES * 0.8) return keyOf(...scope)
    const hash = createHash('sha256').update(path).digest('hex')
    return keyOf('http', ...parts, `${method} #${hash}`)
  } catch (error) {
    if (!(error instanceof InvalidInputError)) throw error
    throw mistake('scope', error.message.replace(/^\S+ |\.$/g, ''))
  }
}

/** Somebody without a name must not be taken for everybody. */
function readPrincipal(principal: unknown): readonly (string | number | bigint)[] {
  const parts = Array.isArray(principal) ? principal : [principal]
  const isSaid = (part: unknown) => part !== undefined && part !== null && part !== ''
  if (parts.length > 0 && parts.every(isSaid)) return parts
  const name = (part: unknown) => (part === '' ? 'an empty text' : nameGiven(part))
  const said = Array.isArray(principal) ? `[${parts.map(name).join(', ')}]` : name(principal)
  throw mistake(
    'scope',
    `must say for each request whose key it is, and said ${said}; refuse those who are not known before they come here`,
  )
}

function markReplayed(response: Response): Response {
  response.headers.set('idempotency-replayed', 'true')
  return response
}
