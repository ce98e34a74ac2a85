import { connect, type IncomingHttpHeaders, type OutgoingHttpHeaders } from 'node:http2'
import { onTestFinished } from 'vitest'

export interface Http2Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

/** Sends POST requests over one HTTP/2 connection, without content-length. Closes the connection after the test. */
export function http2Client(port: number) {
  const session = connect(`http://127.0.0.1:${port}`)
  session.on('error', () => {})
  onTestFinished(() => session.destroy())
  /** @param body undefined: END_STREAM is on the HEADERS frame. An empty string: an empty DATA frame has it. */
  return (
    path: string,
    headers: OutgoingHttpHeaders,
    body: string | undefined,
    /** Resets the stream after the body, in place of its end. */
    { isReset = false } = {},
  ): Promise<Http2Answer> =>
    new Promise((resolve, reject) => {
      const stream = session.request(
        { ':method': 'POST', ':path': path, ...headers },
        { endStream: body === undefined },
      )
      let answered: Omit<Http2Answer, 'body'> | undefined
      let text = ''
      stream.on('response', (received) => {
        answered = { status: Number(received[':status']), headers: received }
      })
      stream.setEncoding('utf8')
      stream.on('data', (chunk) => {
        text += chunk
      })
      stream.on('error', reject)
      stream.on('close', () =>
        answered ? resolve({ ...answered, body: text }) : reject(new Error('closed without a response')),
      )
      if (body === undefined) return
      if (isReset) stream.write(body, () => stream.destroy(new Error('reset by the test')))
      else stream.end(body)
    })
}
