import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { ScramClient } from './scram-client.js'

const ok = [0x52, 0, 0, 0, 8, 0, 0, 0, 0]
const readyForQuery = [0x5a, 0, 0, 0, 5, 0x49]

it.each([
  ['for the password in clear', [0x52, 0, 0, 0, 8, 0, 0, 0, 3]],
  ['for an MD5 of it', [0x52, 0, 0, 0, 12, 0, 0, 0, 5, 1, 2, 3, 4]],
  ['for nothing', [...ok, ...readyForQuery]],
])('tells whoever listens on the port and asks %s nothing', async (_, request) => {
  let received = ''
  const thief = createServer((socket) => {
    socket.on('error', () => {})
    socket.on('data', (chunk) => {
      received += chunk.toString('latin1')
    })
    socket.write(Buffer.from(request))
  })
  onTestFinished(() => void thief.close())
  await once(thief.listen(0, '127.0.0.1'), 'listening')
  const { port } = thief.address() as AddressInfo
  const client = new ScramClient(`postgres://dibs:hunter2@127.0.0.1:${port}/postgres`)
  const ended = once(client, 'end')
  await expect(client.connect()).rejects.toThrow()
  await ended
  expect(received).toContain('user\0dibs')
  expect(received).not.toMatch(/hunter2|md5/)
})
