import { once } from 'node:events'
import { type ServerResponse, STATUS_CODES } from 'node:http'
import { bodiless } from './response-parts.js'

/** HTTP/2 has no status message: Node warns when a program reads or sets one. */
export const hasStatusMessage = ({ req }: ServerResponse): boolean => req.httpVersionMajor < 2

/** Status and headers of a response. Headers that are there and not named by it stay. */
export function writeHead(to: ServerResponse, { status, headers }: Response): void {
  to.statusCode = status
  if (hasStatusMessage(to)) to.statusMessage = STATUS_CODES[status] ?? ''
  for (const [name, value] of headers) if (name !== 'set-cookie') to.setHeader(name, value)
  const cookies = headers.getSetCookie()
  if (cookies.length > 0) to.setHeader('set-cookie', cookies)
}

/** Sends a response of the Fetch kind over one of Node's. */
export async function sendResponse(to: ServerResponse, response: Response): Promise<void> {
  writeHead(to, response)
  const { body } = response
  const reader = body?.getReader()
  // The last chunk goes with the end: of a body in one piece the length can be told then.
  let last: Uint8Array | undefined
  try {
    for (;;) {
      const { done, value } = (await reader?.read()) ?? { done: true, value: undefined }
      if (done) break
      if (last && !(await write(to, last))) return void (await reader?.cancel().catch(() => {}))
      last = value
    }
  } catch (error) {
    // Half of it may be sent: the client must not take that for all.
    if (!to.headersSent) throw error
    return void to.destroy()
  }
  endWith(to, last)
}

/** The whole body at once. Its length is said, since Node does not where one was taken away before. */
export function endWith(to: ServerResponse, body: Uint8Array | undefined): void {
  if (!to.headersSent && !bodiless.has(to.statusCode)) to.setHeader('content-length', body?.length ?? 0)
  to.end(body)
}

/** False: nobody is there any more. */
async function write(to: ServerResponse, chunk: Uint8Array): Promise<boolean> {
  if (to.destroyed) return false
  if (to.write(chunk)) return true
  const gone = new AbortController()
  const leave = (): void => gone.abort()
  to.once('close', leave)
  try {
    await once(to, 'drain', { signal: gone.signal })
  } catch {
    return false
  } finally {
    to.off('close', leave)
  }
  return !to.destroyed
}

/** Whatever is sent over a response that was sent already leads nowhere, and is no error. */
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
