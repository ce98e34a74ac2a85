import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import type { RequestBody } from '../idempotency/exchange.js'
import type { Idempotency } from '../idempotency/idempotency.js'
import { requestCutOff } from '../idempotency/refusals.js'
import { assertSingleMiddleware, type Claimed, registerClaimed } from '../idempotency/request-claim.js'
import { toResponse } from '../idempotency/response-parts.js'
import { CapturedResponse } from './captured-response.js'
import { sendResponse } from './send-response.js'

/** A request of a framework that is built on Node's HTTP server. */
export interface NodeExchange<R> {
  /** The request of the framework. */
  readonly source: R & object
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** Path and query, as the client sent them. */
  readonly target: string
  /** The body as a parser left it. */
  readonly body: () => RequestBody | Promise<RequestBody>
  readonly prepare?: () => Promise<void>
  /** Calls the handler, or the next middleware. */
  readonly callHandler: () => void
  /** Headers that the framework has not passed to the response yet. */
  readonly before?: OutgoingHttpHeaders
  readonly hasBegun?: () => boolean
  /** Sends a response if the handler was not called. */
  readonly send?: (response: Response) => Promise<void>
}

/** Responds over Node's own `ServerResponse`. The handler writes to it as usual. */
export async function answerOverNode<R>(
  middleware: Idempotency<R>,
  exchange: NodeExchange<R>,
): Promise<void> {
  const { source, request, response, target, callHandler } = exchange
  const register = (claimed: Claimed<unknown>) => registerClaimed(claimed, source, request)
  assertSingleMiddleware(request)
  let captured: CapturedResponse | undefined
  const verdict = await middleware.answer({
    source,
    method: request.method ?? 'GET',
    target,
    header: (name) => headerOf(request, name),
    body: exchange.body,
    isRepeatable: false,
    prepare: async () => {
      await exchange.prepare?.()
      // guard: http.cut-off
      if (isCutOff(request)) throw requestCutOff()
    },
    ...(exchange.hasBegun ? { hasBegun: exchange.hasBegun } : {}),
    run(claimed, maxBytes) {
      register(claimed)
      captured = new CapturedResponse(response, maxBytes, exchange.before)
      callHandler()
      return captured.completed
    },
  })
  if (verdict.kind === 'pass') {
    if (verdict.claimed) register(verdict.claimed)
    return callHandler()
  }
  if (verdict.kind === 'handled' && captured) return captured.send(verdict.parts)
  // Without a captured response, these parts come from `onAmbiguous` and are not stored.
  const other = verdict.kind === 'handled' ? toResponse(verdict.parts) : verdict.response
  if (captured) return await captured.sendOther(other)
  await (exchange.send ? exchange.send(other) : sendResponse(response, other))
}

/** An HTTP/2 request that the client resets ends as if it were complete, and `complete` says so too. */
const isCutOff = ({ aborted, complete, httpVersionMajor }: IncomingMessage): boolean =>
  aborted && (httpVersionMajor >= 2 || !complete)

function headerOf(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name]
  return Array.isArray(value) ? value.join(', ') : value
}
