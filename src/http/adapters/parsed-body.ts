import type { IncomingMessage } from 'node:http'
import { InvalidInputError } from '../../errors.js'
import type { RequestBody } from '../idempotency/exchange.js'
import { bodyUnread } from '../idempotency/refusals.js'

/** A file as multer leaves it on the request. */
interface ParsedFile {
  readonly fieldname?: string
  readonly originalname?: string
  readonly mimetype?: string
  readonly buffer?: Uint8Array
}

/** A request of Express or Fastify, as far as parsers write to it. */
export interface ParsedRequest {
  readonly body?: unknown
  readonly file?: unknown
  readonly files?: unknown
}

/**
 * The body that a parser in front of the middleware left on the request. If the client sent a body and no parser left
 * it there, the request is refused: a repetition with another body would look the same.
 */
export async function parsedBody(
  raw: IncomingMessage,
  parsed: ParsedRequest,
  advice: string,
): Promise<RequestBody> {
  const { body } = parsed
  const files = filesOf(parsed)
  if (files.length > 0) return { value: { body, files: files.map(toPart) } }
  if (body instanceof Uint8Array) return body
  if (!isEmpty(body)) return { value: body }
  if (!(await hasBody(raw))) return undefined
  if (raw.readableEnded && isParsed(body, raw)) return { value: body }
  raw.resume() // the connection can be used again only after the whole body has arrived
  throw bodyUnread(advice)
}

/** `request.file` and `request.files` are functions where a streaming parser such as @fastify/multipart is installed. */
function filesOf({ file, files }: ParsedRequest): readonly ParsedFile[] {
  const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null
  const found = [isObject(file) ? file : [], isObject(files) ? Object.values(files).flat() : []]
  return found.flat().filter(isObject)
}

function toPart({ fieldname, originalname, mimetype, buffer }: ParsedFile): object {
  if (!buffer)
    throw new InvalidInputError(
      'body',
      'of the request has a file that is not in memory, so it cannot be compared: give `fingerprint`',
    )
  return { fieldname, originalname, mimetype, buffer }
}

const isPlain = (value: object): boolean =>
  [Object.prototype, null].includes(Object.getPrototypeOf(value)) || Array.isArray(value)

/** True for an empty value, and for the `{}` that body-parser 1 (Express 4) leaves if it parsed nothing. */
const isEmpty = (body: unknown): boolean =>
  body === undefined ||
  body === null ||
  body === '' ||
  (typeof body === 'object' && isPlain(body) && Object.keys(body).length === 0)

/** Whether a parser made this empty value from bytes that it read. Otherwise something else consumed the bytes. */
function isParsed(body: unknown, raw: IncomingMessage): boolean {
  if (body === undefined) return false
  // body-parser 1 marks the requests that it parsed.
  const isMarked = '_body' in raw && raw._body === true
  return isMarked || /^(?:application\/(?:[^;]+\+)?json|multipart\/form-data)\b/i.test(typeOf(raw))
}

const typeOf = ({ headers }: IncomingMessage): string => headers['content-type']?.trim() ?? ''

/** Whether the client sent a body. HTTP/2 announces one by no header, so the stream itself has to tell. */
async function hasBody(raw: IncomingMessage): Promise<boolean> {
  if (raw.readableDidRead) return true
  if (raw.readableEnded) return false
  const { 'content-length': length, 'transfer-encoding': coding } = raw.headers
  if (length !== undefined) return Number(length) > 0
  if (raw.httpVersionMajor < 2 && coding === undefined) return false
  return await hasBytes(raw)
}

/** Waits for the first bytes of an unread request, or for its end. The bytes stay unread. */
function hasBytes(raw: IncomingMessage): Promise<boolean> | boolean {
  const isBeingRead = raw.readableFlowing !== null
  if (isBeingRead || raw.destroyed) return true
  return new Promise((resolve) => {
    const events = ['readable', 'end', 'close'] as const
    const settle = (): void => {
      for (const event of events) raw.off(event, settle)
      const hasBroken = raw.destroyed && !raw.readableEnded
      resolve(raw.readableLength > 0 || hasBroken)
    }
    for (const event of events) raw.on(event, settle)
  })
}
