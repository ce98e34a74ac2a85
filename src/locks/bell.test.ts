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
    const waiting = bell.wait(HOUR_MS)
    ring()
    await waiting
    bell.stop()
    expect(isHeard()).toBe(false)
  })

  it('keeps what came before the wait, until it is forgotten', async () => {
    const { bell, ring } = ringable()
    ring()
    await bell.wait(HOUR_MS)
    bell.forget()
    const before = performance.now()
    await bell.wait(30)
    expect(performance.now() - before).toBeGreaterThan(25)
  })

  it('is interrupted where it waits, and not where it will', async () => {
    const { bell } = ringable()
    const waiting = bell.wait(HOUR_MS)
    bell.interrupt()
    await waiting
    bell.interrupt()
    const before = performance.now()
    await bell.wait(30)
    expect(performance.now() - before).toBeGreaterThan(25)
  })

  it('ends with its time, or with the signal', async () => {
    const { bell } = ringable()
    await bell.wait(1)
    const controller = new AbortController()
    const waiting = bell.wait(HOUR_MS, controller.signal)
    controller.abort()
    await waiting
    await bell.wait(HOUR_MS, controller.signal)
  })
})
