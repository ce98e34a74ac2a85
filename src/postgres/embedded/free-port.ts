import { createServer } from 'node:net'

/** Returns a free port: `wanted` if that is free, otherwise any. */
export async function freePort(wanted = 0): Promise<number> {
  const found = await tryPort(wanted)
  return found ?? freePort()
}

function tryPort(port: number): Promise<number | undefined> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', () => resolve(undefined))
    server.listen(port, '127.0.0.1', () => {
      const address = server.address()
      server.close(() => resolve(typeof address === 'object' ? address?.port : undefined))
    })
  })
}
