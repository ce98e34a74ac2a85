import { describe, expect, it } from 'vitest'
import { CircuitBreaker } from './circuit-breaker.js'

/** A breaker whose clock the test moves. */
function start() {
  let now = 1_000_000
  const breaker = new CircuitBreaker({ maxFailures: 5, openMs: 30_000, maxProbes: 3, now: () => now })
  const fail = (times: number) => Array.from({ length: times }, () => breaker.fail())
  return {
    breaker,
    fail,
    pass: (ms: number) => {
      now += ms
    },
  }
}

describe('the circuit breaker', () => {
  it('opens after five failures in a row, for 30 seconds', () => {
    const { breaker, fail, pass } = start()
    expect(fail(4)).toEqual([false, false, false, false])
    expect([breaker.state, breaker.enter()]).toEqual(['closed', 0])
    expect(fail(1)).toEqual([true])
    expect([breaker.state, breaker.enter()]).toEqual(['open', 30_000])
    pass(29_999)
    expect([breaker.state, breaker.enter()]).toEqual(['open', 1])
    pass(1)
    expect(breaker.state).toBe('half-open')
  })

  it('counts only failures in a row', () => {
    const { breaker, fail } = start()
    fail(4)
    expect(breaker.succeed()).toBe(false)
    fail(4)
    expect(breaker.state).toBe('closed')
  })

  it('lets three try at a time when it is half open, and one success closes it', () => {
    const { breaker, fail, pass } = start()
    fail(5)
    pass(30_000)
    expect([1, 2, 3, 4].map(() => breaker.enter())).toEqual([0, 0, 0, 1_000])
    expect(breaker.succeed()).toBe(true)
    expect(breaker.state).toBe('closed')
    expect([1, 2, 3, 4, 5].map(() => breaker.enter())).toEqual([0, 0, 0, 0, 0])
    expect(breaker.succeed()).toBe(false)
  })

  it('is open again after a try that fails, and lets three try once more after that', () => {
    const { breaker, fail, pass } = start()
    fail(5)
    pass(30_000)
    for (let n = 0; n < 3; n++) breaker.enter()
    expect(fail(1)).toEqual([false]) // nothing new
    expect([breaker.state, breaker.enter()]).toEqual(['open', 30_000])
    fail(2) // the other two have ended as well
    pass(30_000)
    expect([1, 2, 3, 4].map(() => breaker.enter())).toEqual([0, 0, 0, 1_000])
  })

  it('is closed by whatever else is answered', () => {
    const { breaker, fail } = start()
    fail(5)
    expect(breaker.succeed()).toBe(true)
    expect([breaker.state, breaker.enter()]).toEqual(['closed', 0])
  })
})
