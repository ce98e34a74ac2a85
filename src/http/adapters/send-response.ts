import { once } from 'node:events'
import { type ServerResponse, STATUS_CODES } from 'node:http'
import { bodiless } from '../idempotency/response-parts.js'

/** HTTP/2 has no status message: Node warns when a program reads or sets one. */
export const hasStatusMessage = ({ req }: ServerResponse): boolean => req.httpVersionMajor < 2

/** Writes status and headers. Other headers that are already set stay. */
export function writeHead(to: ServerResponse, { status, headers }: Response): void {
  to.statusCode = status
  if (hasStatusMessage(to)) to.statusMessage = STATUS_CODES[status] ?? ''
  for (const [name, value] of headers) if (name !== 'set-cookie') to.setHeader(name, value)
  const cookies = headers.getSetCookie()
  if (cookies.length > 0) to.setHeader('set-cookie', cookies)
}

/** Sends a `Response` over a `ServerResponse`. */
export async function sendResponse(to: ServerResponse, response: Response): Promise<void> {
  writeHead(to, response)
  const { body } = response
  const reader = body?.getReader()
  // The last chunk is sent with the end, so that the length of a body in one chunk is known.
  let last: Uint8Array | undefined
  try {
    for (;;) {
      const { done, value } = (await reader?.read()) ?? { done: true, value: undefined }
      if (done) break
      if (last && !(await write(to, last))) return void (await reader?.cancel().catch(() => {}))
      last = value
    }
  } catch (error) {
    // A part may be sent. Without an end, the client sees that the response is incomplete.
    if (!to.headersSent) throw error
    return void to.destroy()
  }
  endWith(to, last)
}

/** Sends the whole body. Sets the length, because Node does not after that header was removed. */
export function endWith(to: ServerResponse, body: Uint8Array | undefined): void {
  if (!to.headersSent && !bodiless.has(to.statusCode)) to.setHeader('content-length', body?.length ?? 0)
  to.end(body)
}

/** Returns false if the client has disconnected. */
async function write(to: ServerResponse, chunk: Uint8Array): Promise<boolean> {
  if (to.destroyed) return false
  if (to.write(chunk)) return true
  const closed = new AbortController()
  const abort = (): void => closed.abort()
  to.once('close', abort)
  try {
    await once(to, 'drain', { signal: closed.signal })
  } catch {
    return false
  } finally {
    to.off('close', abort)
  }
  return !to.destroyed
}

/** Makes all further writes to a response have no effect and raise no error. */
export function silence(response: ServerResponse): void {
  const nothing = () => response
  const methods = [
    'writeHead',
    'end',
    'flushHeaders',
    'setHeader',
    'setHeaders',
    'appendHeader',
    'removeHeader',
  ]
  for (const name of methods) Object.defineProperty(response, name, { value: nothing, configurable: true })
  Object.defineProperty(response, 'write', { value: () => true, configurable: true })
  for (const name of ['headersSent', 'writableEnded', 'finished'])
    Object.defineProperty(response, name, { get: () => false, set: () => {}, configurable: true })
}
