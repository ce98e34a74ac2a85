import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'

export interface CutProxy extends AsyncDisposable {
  readonly url: string
  /** From now on: when a client sends COMMIT, hand it to the server and cut the client off before the answer. */
  cutAfterCommit(): void
  /** From now on: when a client sends COMMIT, cut both sides without handing it on. */
  cutBeforeCommit(): void
  /** From now on: hand COMMIT to the server, then answer like a server that dies, in Russian. */
  panicAfterCommit(): void
  /** Hand nothing on, in neither direction, and close nothing. */
  blackHole(): void
  heal(): void
}

type Mode = 'pass' | 'cut after' | 'cut before' | 'panic after' | 'black hole'

/** Fields S, V, C, M of an ErrorResponse; the severity that `pg` shows is the translated one. */
const fields = Buffer.from('SПАНИКА\0VPANIC\0C58030\0Mcould not write\0\0')
const length = Buffer.alloc(4)
length.writeInt32BE(fields.length + 4)
const panic = Buffer.concat([Buffer.from('E'), length, fields])

/** Stands between a client and the server at `target`, and fails in one chosen way. */
export async function startCutProxy(target: string): Promise<CutProxy> {
  const { port } = new URL(target)
  const sockets = new Set<Socket>()
  let mode: Mode = 'pass'

  const proxy = createServer((client) => {
    const server = connect(Number(port), '127.0.0.1')
    let isCutting = false
    for (const socket of [client, server]) {
      sockets.add(socket)
      socket.setNoDelay(true)
      socket.on('error', () => {})
      socket.on('close', () => sockets.delete(socket))
    }
    client.on('data', (chunk) => {
      if (mode === 'black hole') return
      const isCommit = chunk.includes('commit\0')
      if (isCommit && mode === 'cut before') {
        client.destroy()
        server.destroy()
        return
      }
      isCutting ||= isCommit && (mode === 'cut after' || mode === 'panic after')
      server.write(chunk)
    })
    server.on('data', (chunk) => {
      if (mode === 'black hole') return
      if (!isCutting) return void client.write(chunk)
      // The server has answered, so it has executed.
      if (mode === 'panic after') client.end(panic)
      else client.resetAndDestroy()
      server.end()
    })
    client.on('close', () => server.end())
    server.on('close', () => client.destroy())
  })
  proxy.listen(0, '127.0.0.1')
  await once(proxy, 'listening')
  const through = new URL(target)
  through.port = String((proxy.address() as AddressInfo).port)
  return {
    url: through.href,
    cutAfterCommit: () => {
      mode = 'cut after'
    },
    cutBeforeCommit: () => {
      mode = 'cut before'
    },
    panicAfterCommit: () => {
      mode = 'panic after'
    },
    blackHole: () => {
      mode = 'black hole'
    },
    heal: () => {
      mode = 'pass'
    },
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      proxy.close()
    },
  }
}
