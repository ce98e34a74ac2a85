import type { Dibs } from '../dibs.js'
import { toProblem } from '../errors/to-problem.js'
import { BusinessRuleError, InvalidInputError, PermanentError } from '../errors.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { Claimed, remember } from './claimed.js'
import type { BytesOf } from './exchange.js'
import { Idempotency } from './idempotency.js'
import type { IdempotencyOptions, OwnTransaction } from './options.js'
import { explainPrecondition } from './precondition-problem.js'
import { makeProblem, type ProblemStyle, problemResponse } from './problem.js'
import { requestTooLarge } from './refuse-request.js'
import { isStream, type ResponseParts, readBytes, readResponse, toResponse } from './response-parts.js'
import { refuseStream } from './unstorable-response.js'

/** Handles a request, for every runtime with Fetch types. `H` is the type of the transaction. */
export type FetchHandler<A extends unknown[] = [], H = Transaction> = (
  request: Request,
  claimed: Claimed<H>,
  ...rest: A
) => Response | Promise<Response>

type Served<A extends unknown[]> = (request: Request, ...rest: A) => Promise<Response>

/**
 * Puts the `Idempotency-Key` middleware in front of a handler with Fetch types: for Next, Remix, Bun, or any framework that takes a function of a `Request`.
 *
 * After a conflict with another transaction, the handler runs again from its start. Further arguments are passed on to it.
 *
 * @example
 * const handle = idempotent(dibs, { scope: (request) => [tenant, request.headers.get('x-user') ?? ''] }, async (request, { tx }) => {
 *   const { item } = (await request.json()) as { item: string }
 *   const { rows } = await tx.query<{ id: string }>('insert into orders (item) values ($1) returning id', [item])
 *   return Response.json({ id: rows[0]?.id }, { status: 201 })
 * })
 */
export function idempotent<A extends unknown[] = []>(
  dibs: Dibs,
  options: IdempotencyOptions<Request>,
  handler: FetchHandler<A>,
): Served<A>
export function idempotent<H, A extends unknown[] = []>(
  dibs: Dibs,
  options: IdempotencyOptions<Request, H> & { readonly transaction: OwnTransaction<H> },
  handler: FetchHandler<A, H>,
): Served<A>
export function idempotent<A extends unknown[]>(
  dibs: Dibs,
  options: IdempotencyOptions<Request, unknown>,
  handler: FetchHandler<A, never>,
): Served<A> {
  const gate = new Idempotency<Request>(dibs, options)
  // The option `transaction` makes the transaction that the handler takes, as the overloads say.
  const handle = handler as FetchHandler<A, unknown>
  return async (request, ...rest) => {
    const { pathname, search } = new URL(request.url)
    let body: Uint8Array | undefined
    let copy: Request | undefined
    // Returns a request that nobody has read yet, because a body can be read only once.
    const unread = (): Request => {
      if (copy === undefined || copy.bodyUsed) {
        copy = new Request(request, body && request.body ? { body: new Uint8Array(body) } : {})
      }
      return copy
    }
    const run = async (claimed: Claimed<unknown>, mostBytes: BytesOf): Promise<ResponseParts> => {
      const given = unread()
      copy = undefined // the handler may read it, now or later
      remember(claimed, request, given)
      const response = await answerOf(() => handle(given, claimed, ...rest), gate.style)
      if (isStream(response.headers)) throw refuseStream()
      return await readResponse(response, mostBytes)
    }
    const verdict = await gate.answer({
      // The functions in `options` may read the body, too.
      get source() {
        return unread()
      },
      method: request.method,
      target: `${pathname}${search}`,
      header: (name) => request.headers.get(name) ?? undefined,
      prepare: async () => {
        body = await readRequest(request, gate.maxRequestBytes)
      },
      body: () => body,
      run,
      isRepeatable: true,
    })
    if (verdict.kind === 'own') return toResponse(verdict.parts)
    if (verdict.kind === 'other') return verdict.response
    const given = body ? unread() : request
    if (verdict.claimed) remember(verdict.claimed, request, given)
    return await handle(given, verdict.claimed ?? new Claimed(undefined, {}), ...rest)
  }
}

async function readRequest(request: Request, mostBytes: number): Promise<Uint8Array> {
  if (request.bodyUsed)
    throw new InvalidInputError(
      'body',
      'of the request was read before the middleware: give it a clone of the request instead',
    )
  const body = request.body ? await readBytes(request.body, mostBytes) : new Uint8Array()
  if (body === null) throw requestTooLarge(mostBytes)
  return body
}

/** Turns an error that is meant for the client into a response. */
async function answerOf(handle: () => Response | Promise<Response>, style: ProblemStyle): Promise<Response> {
  try {
    return await handle()
  } catch (error) {
    const refused = explainPrecondition(error)
    if (refused) {
      const response = problemResponse(makeProblem(refused.name, refused, style), style)
      if (refused.etag) response.headers.set('etag', refused.etag)
      return response
    }
    if (!(error instanceof BusinessRuleError || error instanceof PermanentError)) throw error
    const { status, headers, body } = toProblem(error)
    return new Response(JSON.stringify(body), { status, headers })
  }
}
