import { describe, expect, it } from 'vitest'
import type { Wakeups } from '../postgres/wakeups.js'
import { Bell } from './bell.js'

/** Hints are given by hand. */
function ringable() {
  let ring = (): void => {}
  let isHeard = true
  const wakeups = {
    subscribe: (topic: string, onWake: () => void) => {
      expect(topic).toBe('lock:x')
      ring = onWake
      return () => {
        isHeard = false
      }
    },
  }
  const bell = new Bell(wakeups as unknown as Wakeups, 'lock:x')
  return { bell, ring: () => ring(), isHeard: () => isHeard }
}

const HOUR_MS = 3_600_000

describe('a bell', () => {
  it('wakes whoever waits', async () => {
    const { bell, ring, isHeard } = ringable()
    const waiting = bell.wait(HOUR_MS, undefined)
    ring()
    await waiting
    bell.stop()
    expect(isHeard()).toBe(false)
  })

  it('keeps what came before the wait, until it is forgotten', async () => {
    const { bell, ring } = ringable()
    ring()
    await bell.wait(HOUR_MS, undefined)
    bell.forget()
    const before = performance.now()
    await bell.wait(30, undefined)
    expect(performance.now() - before).toBeGreaterThan(25)
  })

  it('ends with its time, or with the signal', async () => {
    const { bell } = ringable()
    await bell.wait(1, undefined)
    const controller = new AbortController()
    const waiting = bell.wait(HOUR_MS, controller.signal)
    controller.abort()
    await waiting
    await bell.wait(HOUR_MS, controller.signal)
  })
})
