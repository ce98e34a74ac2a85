import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { StderrLogger } from './stderr-logger.js'

const written: string[] = []
let logger: StderrLogger

beforeEach(() => {
  vi.useFakeTimers()
  vi.setSystemTime(new Date('2026-03-01T10:00:00Z'))
  written.length = 0
  logger = new StderrLogger((text) => written.push(text))
})

afterEach(() => {
  logger.close()
  vi.useRealTimers()
})

it('writes warnings and errors in one line each, and nothing else', () => {
  logger.debug()
  logger.info()
  logger.warn(
    {
      ...{ event: 'dibs:job.failed', schema: 'dibs', instance: 3, id: '7', subject: 'send email' },
      ...{ fields: { a: 1 }, missing: undefined, err: new Error('first line\nsecond line') },
    },
    'job failed; it is tried again',
  )
  expect(written).toEqual([
    '2026-03-01T10:00:00.000Z WARN dibs: job failed; it is tried again event=dibs:job.failed subject="send email" schema=dibs id=7 fields="{\\"a\\":1}" err="Error: first line\\nsecond line"',
  ])
})

it('writes the stack of a final failure on the lines that follow', () => {
  const error = new Error('no such seat', { cause: new TypeError('seat is undefined') })
  logger.error({ event: 'dibs:job.failed', err: error }, 'job is dead')
  const [first, ...rest] = `${written[0]}`.split('\n')
  expect(first).toMatch(/ERROR dibs: job is dead .* err="Error: no such seat"$/)
  expect(rest.every((line) => line.startsWith('    '))).toBe(true)
  expect(rest.join('\n')).toContain('stderr-logger.unit.test.ts')
  expect(rest.join('\n')).toContain('Caused by: TypeError: seat is undefined')
  logger.error({ event: 'dibs:commit.unknown', err: error }, 'no stack')
  expect(written[1]).not.toContain('\n')
})

it('bounds the lines about one event and subject, and tells how many were suppressed', () => {
  for (let n = 0; n < 322; n++) logger.warn({ event: 'dibs:job.failed', subject: 'email' }, 'job failed')
  logger.warn({ event: 'dibs:job.failed', subject: 'other' }, 'job failed')
  expect(written).toHaveLength(11)
  vi.advanceTimersByTime(10_000)
  expect(written).toHaveLength(12)
  expect(written[11]).toBe(
    '2026-03-01T10:00:10.000Z WARN dibs: suppressed 312 more lines about dibs:job.failed email',
  )
  logger.warn({ event: 'dibs:job.failed', subject: 'email' }, 'job failed')
  expect(written).toHaveLength(13)
})

it('tells at the end what was suppressed', () => {
  for (let n = 0; n < 11; n++) logger.error({ event: 'dibs:job.failed' }, 'job failed')
  logger.close()
  expect(written.at(-1)).toMatch(/suppressed 1 more lines about dibs:job\.failed$/)
})

it('survives whatever it is given', () => {
  const hostile = new Proxy(new Error('x'), {
    get() {
      throw new Error('do not look')
    },
  })
  const circular: { self?: unknown } = {}
  circular.self = circular
  logger.error({ event: 'dibs:job.failed', err: hostile, fields: circular, big: 'x'.repeat(9_999) }, 'odd')
  expect(written).toHaveLength(1)
  expect(`${written[0]}`.length).toBeLessThan(1_000)
})

it('keeps a line a line, whatever characters a name, a message or a stack holds', () => {
  const forged = '\n2026-03-01T10:00:00.000Z ERROR dibs: forged\r\u2028\u0085\u001b[2J\u009b31m\u202e'
  const error = new Error(forged)
  const fields = { event: 'dibs:job.failed', subject: `email${forged}`, fields: { a: forged }, err: error }
  for (let n = 0; n < 11; n++) logger.error(fields, `a handler says${forged}`)
  logger.close()
  expect(written).toHaveLength(11)
  for (const text of written) {
    const [first = '', ...rest] = text.split('\n')
    expect(first).toMatch(/^2026-03-01T10:00:00\.000Z ERROR dibs: (?:a handler says|suppressed 1 more)/)
    for (const line of rest) expect(line).toMatch(/^ {4}/)
    expect(text.replaceAll('\n', '')).not.toMatch(/[\p{Cc}\u2028\u2029\u202e]/u)
  }
})

it('bounds the message of a handler', () => {
  logger.warn({ event: 'dibs:job.logged' }, 'x'.repeat(1_000_000))
  expect(`${written[0]}`.length).toBeLessThan(1_000)
})

it('does not throw if console.error does', () => {
  const consoleError = vi.spyOn(console, 'error').mockImplementation(() => {
    throw new Error('console.error is not to be used')
  })
  const own = new StderrLogger()
  for (let n = 0; n < 11; n++) own.warn({ event: 'dibs:job.failed' }, 'job failed')
  expect(() => own.close()).not.toThrow()
  expect(consoleError).toHaveBeenCalledTimes(11)
  consoleError.mockRestore()
})
