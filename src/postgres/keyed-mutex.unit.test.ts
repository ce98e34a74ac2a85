import { describe, expect, it } from 'vitest'
import { KeyedMutex, keyedMutexOf, type ReleaseKey } from './keyed-mutex.js'

const LONG_MS = 60_000

/** Acquires the key and notes when the call got it. */
function enter(mutex: KeyedMutex, order: string[], name: string, waitMs = LONG_MS, signal?: AbortSignal) {
  return mutex.acquire('key', waitMs, signal).then((release) => {
    order.push(release ? name : `${name} left`)
    return release as ReleaseKey
  })
}

describe('a keyed mutex', () => {
  it('admits one call at a time, in the order in which the calls came', async () => {
    const [mutex, order] = [new KeyedMutex(), [] as string[]]
    const calls = ['ann', 'bob', 'eve'].map((name) => enter(mutex, order, name))
    for (const [n, call] of calls.entries()) {
      const release = await call
      expect(order).toHaveLength(n + 1)
      expect(mutex.isLocked('key')).toBe(true)
      release()
    }
    expect(order).toEqual(['ann', 'bob', 'eve'])
    expect(mutex.isLocked('key')).toBe(false)
  })

  it('does not make calls for different keys wait for each other', async () => {
    const mutex = new KeyedMutex()
    const release = await mutex.acquire('one', LONG_MS)
    expect(await mutex.acquire('other', 0)).toBeTypeOf('function')
    release?.()
  })

  it('lets a call leave when its time is over, and skips it', async () => {
    const [mutex, order] = [new KeyedMutex(), [] as string[]]
    const release = await enter(mutex, order, 'ann')
    const late = enter(mutex, order, 'bob', 5)
    const next = enter(mutex, order, 'eve')
    expect(await late).toBeUndefined()
    release()
    ;(await next)()
    expect(order).toEqual(['ann', 'bob left', 'eve'])
    expect(mutex.isLocked('key')).toBe(false)
  })

  it('lets a call leave when its signal fires, also before it waits', async () => {
    const [mutex, order, controller] = [new KeyedMutex(), [] as string[], new AbortController()]
    const release = await enter(mutex, order, 'ann')
    const waiting = enter(mutex, order, 'bob', LONG_MS, controller.signal)
    controller.abort()
    expect(await waiting).toBeUndefined()
    expect(await enter(mutex, order, 'eve', LONG_MS, controller.signal)).toBeUndefined()
    release()
    expect(mutex.isLocked('key')).toBe(false)
  })

  it('admits all waiting calls at once when the key needs no more mutual exclusion', async () => {
    const [mutex, order] = [new KeyedMutex(), [] as string[]]
    const release = await enter(mutex, order, 'ann')
    const waiting = ['bob', 'eve'].map((name) => enter(mutex, order, name))
    release(true)
    const [bob] = await Promise.all(waiting)
    expect(order).toEqual(['ann', 'bob', 'eve'])
    // Calls that come later exclude each other again, whatever the admitted calls do.
    const later = await enter(mutex, order, 'later')
    bob?.()
    expect(mutex.isLocked('key')).toBe(true)
    later()
  })

  it('is one for each owner', () => {
    const [one, other] = [{}, {}]
    expect(keyedMutexOf(one)).toBe(keyedMutexOf(one))
    expect(keyedMutexOf(one)).not.toBe(keyedMutexOf(other))
  })
})
