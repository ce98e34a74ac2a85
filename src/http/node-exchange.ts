import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { CapturedResponse } from './captured-response.js'
import { assertOnce, type Claimed, remember } from './claimed.js'
import type { Idempotency } from './idempotency.js'
import { requestCutOff } from './refuse-request.js'
import type { RequestBody } from './request-body.js'
import { toResponse } from './response-parts.js'
import { sendResponse } from './send-response.js'

/** A request of Node's, in the hands of a framework that is built on it. */
export interface NodeExchange<R> {
  /** As the framework hands it over. */
  readonly source: R & object
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** Path and query, as the client sent them. */
  readonly target: string
  /** The body as a parser left it. */
  readonly body: () => RequestBody | Promise<RequestBody>
  readonly prepare?: () => Promise<void>
  /** Goes on to the handler. */
  readonly letGo: () => void
  /** Headers that the framework has not handed to the response yet. */
  readonly before?: OutgoingHttpHeaders
  readonly hasBegun?: () => boolean
  /** Sends a response when the handler was not let go. */
  readonly send?: (response: Response) => Promise<void>
}

/** Answers a request over Node's own response, which the handler writes to as ever. */
export async function answerOverNode<R>(gate: Idempotency<R>, exchange: NodeExchange<R>): Promise<void> {
  const { source, request, response, target, letGo } = exchange
  const claimedBy = (claimed: Claimed<unknown>) => remember(claimed, source, request)
  assertOnce(request)
  let captured: CapturedResponse | undefined
  const verdict = await gate.answer({
    source,
    method: request.method ?? 'GET',
    target,
    header: (name) => headerOf(request, name),
    body: exchange.body,
    isRepeatable: false,
    prepare: async () => {
      await exchange.prepare?.()
      if (isCutOff(request)) throw requestCutOff()
    },
    ...(exchange.hasBegun ? { hasBegun: exchange.hasBegun } : {}),
    run(claimed, mostBytes) {
      claimedBy(claimed)
      captured = new CapturedResponse(response, mostBytes, exchange.before)
      letGo()
      return captured.whole
    },
  })
  if (verdict.kind === 'pass') {
    if (verdict.claimed) claimedBy(verdict.claimed)
    return letGo()
  }
  if (verdict.kind === 'own' && captured) return captured.send(verdict.parts)
  // Its own without a handler: what `onAmbiguous` has answered, and is not stored.
  const other = verdict.kind === 'own' ? toResponse(verdict.parts) : verdict.response
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
