import { connect, createServer, type Socket } from 'node:net'
import { MessageReader } from '../src/testing/wire/message-reader.js'

/** A proxy that can end a connection in the middle of a response. */
export interface AnswerCutter extends AsyncDisposable {
  readonly url: string
  /** Cuts the next response after this many messages. */
  cutAfter(messages: number): void
  /** True once the response was cut. */
  readonly hasCut: boolean
}

/** The server's last message when an administrator has terminated the session. */
const terminated = Buffer.from(
  'SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0',
)
const farewell = Buffer.concat([Buffer.from([0x45, 0, 0, 0, terminated.length + 4]), terminated])

/** @param how `terminated`: the server still says why. */
export async function startAnswerCutter(
  url: string,
  how: 'silent' | 'terminated' = 'silent',
): Promise<AnswerCutter> {
  const target = new URL(url)
  const sockets = new Set<Socket>()
  let left: number | undefined
  let hasCut = false

  const server = createServer((client) => {
    const upstream = connect(Number(target.port), target.hostname)
    const reader = new MessageReader()
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.setNoDelay()
      socket.on('error', () => {})
      socket.on('close', () => {
        client.destroy()
        upstream.destroy()
      })
    }
    client.on('data', (chunk) => upstream.write(chunk))
    upstream.on('data', (chunk) => {
      for (const { bytes } of reader.read(chunk)) {
        if (left === 0) {
          left = undefined
          hasCut = true
          if (how === 'terminated') client.write(farewell)
          client.end() // what was sent before still arrives
          return
        }
        if (left !== undefined) left--
        client.write(bytes)
      }
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const way = new URL(url)
  way.hostname = '127.0.0.1'
  way.port = String((server.address() as { port: number }).port)
  return {
    url: way.href,
    cutAfter(messages) {
      left = messages
      hasCut = false
    },
    get hasCut() {
      return hasCut
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
