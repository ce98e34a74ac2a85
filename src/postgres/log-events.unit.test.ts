import { afterEach, expect, it } from 'vitest'
import { emit, newOrigin } from './events.js'
import { logEvents } from './log-events.js'

const unhandled: unknown[] = []
const remember = (error: unknown): void => void unhandled.push(error)

afterEach(() => {
  process.off('unhandledRejection', remember)
  unhandled.length = 0
})

it.each([
  [
    'throws',
    () => {
      throw new Error('the log is full')
    },
  ],
  ['rejects', () => Promise.reject(new Error('the log is full'))],
])('a logger that %s does not end the process', async (_, write) => {
  process.on('unhandledRejection', remember)
  let calls = 0
  const log = () => {
    calls++
    return write()
  }
  const origin = newOrigin('dibs')
  const stop = logEvents({ debug: log, info: log, warn: log, error: log }, origin.instance)
  emit('dibs:connection.discarded', { ...origin, error: new Error('reset') })
  // Node.js reports unhandled rejections after all promises of a turn.
  await new Promise((resolve) => setImmediate(resolve))
  stop()
  expect(calls).toBe(1)
  expect(unhandled).toEqual([])
})
