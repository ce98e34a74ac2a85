import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { CapturedResponse } from './captured-response.js'
import { assertOnce, type Claimed, remember } from './claimed.js'
import type { Idempotency } from './idempotency.js'
import { mistake } from './mistake.js'
import { bodyUnread } from './refuse-request.js'
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
  /** What a parser has made of the body. */
  readonly body: () => RequestBody
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
    ...(exchange.prepare ? { prepare: exchange.prepare } : {}),
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

function headerOf(request: IncomingMessage, name: string): string | undefined {
  const value = request.headers[name]
  return Array.isArray(value) ? value.join(', ') : value
}

/** A file as multer leaves it. */
interface ParsedFile {
  readonly fieldname?: string
  readonly originalname?: string
  readonly mimetype?: string
  readonly buffer?: Uint8Array
}

interface ParsedRequest {
  readonly body?: unknown
  readonly file?: ParsedFile | undefined
  readonly files?: readonly ParsedFile[] | Readonly<Record<string, readonly ParsedFile[]>> | undefined
}

/** What a parser before us has left of the body; refuses one that nobody has read, of which we could not know whether it is the same. */
export function parsedBody(raw: IncomingMessage, parsed: ParsedRequest, advice: string): RequestBody {
  const { body } = parsed
  if (!hasBody(raw)) return undefined
  if (!raw.readableEnded && isEmpty(body)) throw bodyUnread(advice)
  if (body instanceof Uint8Array) return body
  const files = [parsed.file ?? [], parsed.files ? Object.values(parsed.files).flat() : []].flat()
  return files.length === 0 ? { value: body } : { value: { body, files: files.map(toPart) } }
}

function toPart({ fieldname, originalname, mimetype, buffer }: ParsedFile): object {
  if (!buffer)
    throw mistake(
      'body',
      'of the request has a file that is not in memory, so it cannot be compared: give `fingerprint`',
    )
  return { fieldname, originalname, mimetype, buffer }
}

const hasBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0

const isEmpty = (body: unknown): boolean =>
  body === undefined || body === null || (typeof body === 'object' && Object.keys(body).length === 0)
