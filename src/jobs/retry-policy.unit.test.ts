import { describe, expect, it } from 'vitest'
import { BusyError, InvalidOutcomeError, PermanentError, SnoozeError, TransientError } from '../errors.js'
import { type Retry, retryDelayMs } from './retry-policy.js'
import { settlementOf } from './settlement.js'

const delays = (retry: Retry | undefined, attempts = [1, 2, 3, 4]) =>
  attempts.map((attempt) => retryDelayMs(retry, attempt, new Error('no')))

describe('the delay after an attempt that failed', () => {
  it.each<[string, Retry, (number | null)[]]>([
    ['doubles', { jitter: 0 }, [1_000, 2_000, 4_000, 8_000]],
    ['doubles from another base, to a limit', { baseMs: 100, maxMs: 300, jitter: 0 }, [100, 200, 300, 300]],
    ['grows by its base', { backoff: 'linear', baseMs: 100, jitter: 0 }, [100, 200, 300, 400]],
    ['stays the same', { backoff: 'fixed', baseMs: 100, jitter: 0 }, [100, 100, 100, 100]],
    ['is nothing', { backoff: 'fixed', baseMs: 0 }, [0, 0, 0, 0]],
    ['is what a function says', (attempt) => (attempt < 3 ? attempt * 0.5 : null), [1, 1, null, null]],
    ['is never again', () => Number.POSITIVE_INFINITY, [null, null, null, null]],
    ['is not before now', () => -7, [0, 0, 0, 0]],
    ['is a month at most', () => 1e300, Array.from({ length: 4 }, () => 31 * 86_400_000)],
  ])('%s', (_, retry, expected) => {
    expect(delays(retry)).toEqual(expected)
  })

  it('does not grow beyond all bounds', () => {
    expect(delays({ jitter: 0 }, [100, 5_000])).toEqual([3_600_000, 3_600_000])
    expect(delays({ jitter: 0, backoff: 'linear' }, [1e9])).toEqual([3_600_000])
  })

  it('is random, by as much as `jitter` says', () => {
    for (const [jitter, least] of [
      [undefined, 500],
      [0.1, 900],
      [1, 0],
    ] as const) {
      const drawn = Array.from({ length: 500 }, () =>
        Number(retryDelayMs({ jitter: jitter ?? 0.5 }, 1, null)),
      )
      expect(Math.min(...drawn)).toBeGreaterThanOrEqual(least)
      expect(Math.max(...drawn)).toBeLessThanOrEqual(1_000)
      expect(new Set(drawn).size).toBeGreaterThan(20)
    }
  })

  it.each<[string, Retry]>([
    [
      'throws',
      () => {
        throw new Error('a mistake')
      },
    ],
    ['says nothing', (() => undefined) as never],
    ['says nonsense', (() => 'soon') as never],
    ['says what is no number', () => Number.NaN],
    ['is not there for an error that says when', (() => Promise.resolve(1)) as never],
  ])('is the default if a function %s', (_, retry) => {
    for (const delay of delays(retry, [1])) {
      expect(delay).toBeGreaterThanOrEqual(500)
      expect(delay).toBeLessThanOrEqual(1_000)
    }
  })

  it('knows what a function is told', () => {
    const seen: unknown[] = []
    const error = new Error('no')
    retryDelayMs((...told) => seen.push(told), 3, error)
    expect(seen).toEqual([[3, error]])
  })
})

describe('what becomes of a job', () => {
  const fixed = { backoff: 'fixed', baseMs: 100, jitter: 0 } as const
  const settle = (error: unknown, attempt = 1) => {
    const { to, delayMs } = settlementOf(error, { attempt, maxAttempts: 3 }, fixed)
    return [to, delayMs]
  }

  it.each<[string, unknown, readonly [string, number]]>([
    ['an error', new Error('no'), ['retry', 100]],
    ['nothing at all', undefined, ['retry', 100]],
    ['something transient', new TransientError('no'), ['retry', 100]],
    ['something permanent', new PermanentError('no'), ['dead', 0]],
    ['a result that cannot be stored', new InvalidOutcomeError('result', 'is a function'), ['dead', 0]],
    ['an error that says when', new BusyError('it', 1, 5_000), ['retry', 5_000]],
    ['an error that says sooner', new BusyError('it', 1, 5), ['retry', 100]],
    ['an error that says nonsense', { retryAfterMs: Number.NaN }, ['retry', 100]],
    ['an error that says much later', { retryAfterMs: 1e12 }, ['retry', 86_400_000]],
    ['an error that says never', { retryAfterMs: Number.POSITIVE_INFINITY }, ['retry', 100]],
    ['not yet', new SnoozeError(7.2), ['snooze', 8]],
    ['not for ages', new SnoozeError(1e300), ['snooze', 3_153_600_000_000]],
  ])('that has thrown %s', (_, error, expected) => {
    expect(settle(error)).toEqual(expected)
  })

  it('is dead after its last attempt, unless that was snoozed', () => {
    expect(settle(new Error('no'), 2)).toEqual(['retry', 100])
    expect(settle(new Error('no'), 3)).toEqual(['dead', 0])
    expect(settle(new SnoozeError(5), 3)).toEqual(['snooze', 5])
  })

  it('is dead when its policy says so', () => {
    expect(settlementOf(new Error('no'), { attempt: 1, maxAttempts: 3 }, () => null).to).toBe('dead')
  })
})
