import type { Dibs } from '../../dibs.js'
import { toProblem } from '../../errors/to-problem.js'
import { BusinessRuleError, InvalidInputError, PermanentError } from '../../errors.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { MaxBytesFor } from '../idempotency/exchange.js'
import { Idempotency } from '../idempotency/idempotency.js'
import type { IdempotencyOptions, OwnTransaction } from '../idempotency/idempotency-options.js'
import { requestTooLarge } from '../idempotency/refusals.js'
import { Claimed, registerClaimed } from '../idempotency/request-claim.js'
import {
  isStream,
  type ResponseParts,
  readBytes,
  readResponse,
  toResponse,
} from '../idempotency/response-parts.js'
import { streamNotStorable } from '../idempotency/unstorable-response-error.js'
import { explainPrecondition } from '../preconditions/precondition-problem.js'
import { makeProblem, type ProblemStyle, problemResponse } from '../problem.js'

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
  const middleware = new Idempotency<Request>(dibs, options)
  // The option `transaction` makes the transaction that the handler takes, as the overloads say.
  const handle = handler as FetchHandler<A, unknown>
  return async (request, ...rest) => {
    const { pathname, search } = new URL(request.url)
    let body: Uint8Array | undefined
    let copy: Request | undefined
    // Returns a request whose body is still unread, because a body can be read only once.
    const unread = (): Request => {
      if (copy === undefined || copy.bodyUsed) {
        copy = new Request(request, body && request.body ? { body: new Uint8Array(body) } : {})
      }
      return copy
    }
    const run = async (claimed: Claimed<unknown>, maxBytes: MaxBytesFor): Promise<ResponseParts> => {
      const handlerRequest = unread()
      copy = undefined // the handler may read it, now or later
      registerClaimed(claimed, request, handlerRequest)
      const response = await answerOf(() => handle(handlerRequest, claimed, ...rest), middleware.style)
      if (isStream(response.headers)) throw streamNotStorable()
      return await readResponse(response, maxBytes)
    }
    const verdict = await middleware.answer({
      // The functions in `options` may read the body, too.
      get source() {
        return unread()
      },
      method: request.method,
      target: `${pathname}${search}`,
      header: (name) => request.headers.get(name) ?? undefined,
      prepare: async () => {
        body = await readRequest(request, middleware.maxRequestBytes)
      },
      body: () => body,
      run,
      isRepeatable: true,
    })
    if (verdict.kind === 'handled') return toResponse(verdict.parts)
    if (verdict.kind === 'replaced') return verdict.response
    const handlerRequest = body ? unread() : request
    if (verdict.claimed) registerClaimed(verdict.claimed, request, handlerRequest)
    return await handle(handlerRequest, verdict.claimed ?? new Claimed(undefined, {}), ...rest)
  }
}

async function readRequest(request: Request, maxBytes: number): Promise<Uint8Array> {
  if (request.bodyUsed)
    throw new InvalidInputError(
      'body',
      'of the request was read before the middleware: give it a clone of the request instead',
    )
  const body = request.body ? await readBytes(request.body, maxBytes) : new Uint8Array()
  if (body === null) throw requestTooLarge(maxBytes)
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
