import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import pg from 'pg'
import { expect, it } from 'vitest'
import { Database } from './database.js'

const message = (type: string, body: Buffer): Buffer => {
  const head = Buffer.alloc(5, type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

/** A session that is let in, and ended in the same breath: an administrator was quick, or this process slow to read. */
const answer = Buffer.concat([
  message('R', Buffer.from([0, 0, 0, 0])),
  message('Z', Buffer.from('I')),
  message(
    'E',
    Buffer.from('SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0'),
  ),
])

it('survives a session that is ended as soon as it is there', async () => {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.once('data', () => socket.end(answer))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const pool = new pg.Pool({ connectionString: `postgres://nobody@127.0.0.1:${port}/none` })
  pool.on('error', () => {})
  try {
    const database = new Database(pool, { schema: 'dibs', prepared: true })
    // Without a listener on the client this would end the process.
    await expect(database.use(({ client }) => client.query('select 1'))).rejects.toThrow()
  } finally {
    await pool.end()
    for (const socket of sockets) socket.destroy()
    server.close()
  }
})
