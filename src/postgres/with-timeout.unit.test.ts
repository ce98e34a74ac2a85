import { getEventListeners } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { expect, it, vi } from 'vitest'
import { deferred } from '../../test/deferred.js'
import { pendingTimers } from '../../test/watch-timers.js'
import { firstFulfilled, unlessAborted, withTimeout } from './with-timeout.js'

const forever = new Promise<never>(() => {})
const late = (): never => {
  throw new Error('late')
}
const listeners = ({ signal }: AbortController): number => getEventListeners(signal, 'abort').length

it('settles as its promise does', async () => {
  const { signal } = new AbortController()
  await expect(withTimeout(Promise.resolve(1), 60_000, late, signal)).resolves.toBe(1)
  await expect(withTimeout(Promise.reject(new Error('no')), 60_000, late, signal)).rejects.toThrow('no')
  await expect(unlessAborted(Promise.resolve(1), signal)).resolves.toBe(1)
  await expect(unlessAborted(Promise.resolve(1), undefined)).resolves.toBe(1)
})

it('returns or throws what its function does when the time is over', async () => {
  await expect(withTimeout(forever, 1, () => 'in its place')).resolves.toBe('in its place')
  await expect(withTimeout(forever, 1, late)).rejects.toThrow('late')
  await expect(withTimeout(forever, 1, async () => 'later')).resolves.toBe('later')
})

it('rejects with the reason of its signal', async () => {
  const ending = new AbortController()
  const waits = [withTimeout(forever, 60_000, late, ending.signal), unlessAborted(forever, ending.signal)]
  ending.abort(new Error('over'))
  // Also those that begin when it has fired.
  waits.push(withTimeout(forever, 60_000, late, ending.signal), unlessAborted(forever, ending.signal))
  for (const wait of waits) await expect(wait).rejects.toThrow('over')
})

it('leaves no listener and no timer behind, however it ends', async () => {
  const timers = pendingTimers().length
  const lasting = new AbortController()
  await withTimeout(Promise.resolve(1), 60_000, late, lasting.signal)
  await withTimeout(Promise.reject(new Error('no')), 60_000, late, lasting.signal).catch(() => {})
  await withTimeout(forever, 1, () => {}, lasting.signal)
  await unlessAborted(Promise.resolve(1), lasting.signal)
  expect(listeners(lasting)).toBe(0)
  const ending = new AbortController()
  const wait = withTimeout(forever, 60_000, late, ending.signal)
  expect(listeners(ending)).toBe(1)
  ending.abort()
  await wait.catch(() => {})
  expect(listeners(ending)).toBe(0)
  expect(pendingTimers()).toHaveLength(timers)
})

it('prefers a promise that has settled to its signal', async () => {
  const ending = new AbortController()
  const { promise, resolve } = deferred<number>()
  const wait = unlessAborted(promise, ending.signal)
  resolve(1)
  ending.abort(new Error('over'))
  await expect(wait).resolves.toBe(1)
  await expect(unlessAborted(Promise.resolve(2), ending.signal)).resolves.toBe(2)
})

it('counts an answer that is there unread when the process stood still, and calls no function', async () => {
  const written = deferred()
  const server = createServer((socket) => socket.write('answer', () => written.resolve()))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1').pause()
  await written.promise
  // Next in the event loop are the timers, and then the sockets.
  await new Promise((resolve) => setImmediate(resolve))
  const answer = deferred<string>()
  socket.on('data', (chunk) => answer.resolve(String(chunk))).resume()
  const onTimeout = vi.fn(() => 'late')
  const wait = withTimeout(answer.promise, 1, onTimeout)
  for (const until = performance.now() + 20; performance.now() < until; );
  expect(await wait).toBe('answer')
  await new Promise((resolve) => setImmediate(resolve))
  expect(onTimeout).not.toHaveBeenCalled()
  socket.destroy()
  await new Promise((resolve) => server.close(resolve))
})

it('takes the first that is fulfilled', async () => {
  await expect(firstFulfilled([Promise.reject(new Error('no')), Promise.resolve(1)])).resolves.toBe(1)
  await expect(firstFulfilled([Promise.reject(new Error('no'))])).rejects.toBeInstanceOf(AggregateError)
})
