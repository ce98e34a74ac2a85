import { describe, expect, it } from 'vitest'
import type { Wakeups } from '../postgres/wakeups.js'
import { WakeupWaiter } from './wakeup-waiter.js'

/** The test sends the notifications. */
function notifiable() {
  let notify = (): void => {}
  let isSubscribed = true
  const wakeups = {
    subscribe: (topic: string, onWake: () => void) => {
      expect(topic).toBe('lock:x')
      notify = onWake
      return () => {
        isSubscribed = false
      }
    },
  }
  const waiter = new WakeupWaiter(wakeups as unknown as Wakeups, 'lock:x')
  return { waiter, notify: () => notify(), isSubscribed: () => isSubscribed }
}

const HOUR_MS = 3_600_000

describe('a wake-up waiter', () => {
  it('ends a wait at a notification', async () => {
    const { waiter, notify, isSubscribed } = notifiable()
    const waiting = waiter.wait(HOUR_MS)
    notify()
    await waiting
    waiter.unsubscribe()
    expect(isSubscribed()).toBe(false)
  })

  it('keeps a notification that came before the wait, until it is cleared', async () => {
    const { waiter, notify } = notifiable()
    notify()
    await waiter.wait(HOUR_MS)
    waiter.clear()
    const before = performance.now()
    await waiter.wait(30)
    expect(performance.now() - before).toBeGreaterThan(15)
  })

  it('is interrupted during a wait, and not during a later one', async () => {
    const { waiter } = notifiable()
    const waiting = waiter.wait(HOUR_MS)
    waiter.interrupt()
    await waiting
    waiter.interrupt()
    const before = performance.now()
    await waiter.wait(30)
    expect(performance.now() - before).toBeGreaterThan(15)
  })

  it('ends a wait after its time, or with the signal', async () => {
    const { waiter } = notifiable()
    await waiter.wait(1)
    const controller = new AbortController()
    const waiting = waiter.wait(HOUR_MS, controller.signal)
    controller.abort()
    await waiting
    await waiter.wait(HOUR_MS, controller.signal)
  })
})
