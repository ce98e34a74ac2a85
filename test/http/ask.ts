import {
  Agent,
  type ClientRequest,
  type IncomingHttpHeaders,
  type OutgoingHttpHeaders,
  request,
} from 'node:http'

export interface Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly body: Buffer
  /** The body as JSON. */
  // biome-ignore lint/suspicious/noExplicitAny: a test knows what it asked for
  readonly json: any
}

export interface Question {
  readonly method?: string
  readonly headers?: OutgoingHttpHeaders
  /** An object is sent as JSON. */
  readonly body?: unknown
  readonly agent?: Agent
  /** Sent in pieces, without its length. */
  readonly isChunked?: boolean
  /** Told when it was sent: to cut it. */
  readonly onSent?: (request: ClientRequest) => void
}

/** Asks over real HTTP, with what `fetch` would keep from us: repeated headers, chunks, a connection that is cut. */
export function ask(port: number, path: string, question: Question = {}): Promise<Answer> {
  const { method = 'POST', headers = {}, agent, isChunked = false, onSent } = question
  const { body, type } = render(question.body)
  return new Promise((resolve, reject) => {
    const sent = request(
      {
        host: '127.0.0.1',
        port,
        path,
        method,
        agent: agent ?? new Agent({ keepAlive: false }),
        headers: {
          'x-tenant': 't',
          'x-user': 'u',
          ...(type ? { 'content-type': type } : {}),
          ...(body && !isChunked ? { 'content-length': body.length } : {}),
          ...headers,
        },
      },
      (response) => {
        const chunks: Buffer[] = []
        response.on('data', (chunk) => chunks.push(chunk))
        response.on('error', reject)
        response.on('end', () => {
          const bytes = Buffer.concat(chunks)
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            body: bytes,
            get json() {
              return JSON.parse(bytes.toString())
            },
          })
        })
      },
    )
    sent.on('error', reject)
    if (body && isChunked) for (const chunk of inChunks(body)) sent.write(chunk)
    sent.end(isChunked ? undefined : body)
    onSent?.(sent)
  })
}

/** Short ones first, so that also a short body is in several. */
function* inChunks(body: Buffer): Generator<Buffer> {
  let at = 0
  for (let size = 7; at < body.length; size *= 2) {
    yield body.subarray(at, at + size)
    at += size
  }
}

function render(body: unknown): { body?: Buffer; type?: string } {
  if (body === undefined) return {}
  if (Buffer.isBuffer(body)) return { body }
  return { body: Buffer.from(JSON.stringify(body)), type: 'application/json' }
}
