import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { ScramClient } from './scram-client.js'

it('never says the password to whoever listens on the port', async () => {
  let received = ''
  const thief = createServer((socket) => {
    socket.on('error', () => {})
    socket.on('data', (chunk) => {
      received += chunk.toString('latin1')
    })
    socket.write(Buffer.from([0x52, 0, 0, 0, 8, 0, 0, 0, 3])) // AuthenticationCleartextPassword
  })
  onTestFinished(() => void thief.close())
  await once(thief.listen(0, '127.0.0.1'), 'listening')
  const { port } = thief.address() as AddressInfo
  const client = new ScramClient(`postgres://dibs:hunter2@127.0.0.1:${port}/postgres`)
  const ended = once(client, 'end')
  await expect(client.connect()).rejects.toThrow()
  await ended
  expect(received).toContain('user\0dibs')
  expect(received).not.toContain('hunter2')
})
