import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { deferred } from '../../test/deferred.js'
import { BusyError, DatabaseError, StatementTimeoutError } from '../errors.js'
import { Coalescer } from './coalescer.js'

/** A coalescer whose statements the test answers. */
function recording(maxBatch?: number) {
  const sent: {
    items: readonly string[]
    waitMs: number
    answer: () => void
    fail: (error: Error) => void
  }[] = []
  const coalescer = new Coalescer<string, string>(
    async (items, waitMs) => {
      const { promise, resolve } = deferred<Error | undefined>()
      sent.push({ items, waitMs, answer: () => resolve(undefined), fail: resolve })
      const error = await promise
      if (error) throw error
      return items.map((item) => item.toUpperCase())
    },
    maxBatch === undefined ? {} : { maxBatch },
  )
  return {
    sent,
    add: (item: string, waitMs = 500, key = 'k') => coalescer.add(key, item, { waitMs, subject: 'a turn' }),
    coalescer,
  }
}

/** Runs all pending promise callbacks. */
const settled = () => new Promise((resolve) => setImmediate(resolve))

describe('a coalescer', () => {
  it('sends the first item at once, and gathers the items that arrive meanwhile, in order', async () => {
    const { sent, add, coalescer } = recording()
    const first = add('a')
    expect(sent.map(({ items }) => items)).toEqual([['a']])
    const others = [add('b'), add('c'), add('d')]
    await settled()
    expect(sent).toHaveLength(1)
    sent[0]?.answer()
    expect(await first).toBe('A')
    await settled()
    expect(sent[1]?.items).toEqual(['b', 'c', 'd'])
    sent[1]?.answer()
    expect(await Promise.all(others)).toEqual(['B', 'C', 'D'])
    await settled()
    expect(coalescer.size).toBe(0)
    void add('e')
    expect(sent[2]?.items).toEqual(['e'])
    sent[2]?.answer()
  })

  it('keeps keys apart', () => {
    const { sent, add, coalescer } = recording()
    void add('a', 500, 'one')
    void add('b', 500, 'two')
    expect(sent.map(({ items }) => items)).toEqual([['a'], ['b']])
    expect(coalescer.size).toBe(2)
    for (const { answer } of sent) answer()
  })

  it('sends at most maxBatch items in a statement', async () => {
    const { sent, add } = recording(2)
    const all = ['a', 'b', 'c', 'd'].map((item) => add(item))
    for (let n = 0; n < 3; n++) {
      sent[n]?.answer()
      await settled()
    }
    expect(sent.map(({ items }) => items)).toEqual([['a'], ['b', 'c'], ['d']])
    expect(await Promise.all(all)).toEqual(['A', 'B', 'C', 'D'])
  })

  it('lets a batch wait as long as its most patient item still may', async () => {
    const { sent, add } = recording()
    const all = [add('a', 70), add('b', 5_000), add('c', 9_000)]
    await settled()
    sent[0]?.answer()
    await settled()
    // A slow machine may have used some of it.
    expect(sent[0]?.waitMs).toBeGreaterThan(0)
    expect(sent[0]?.waitMs).toBeLessThanOrEqual(70)
    expect(sent[1]?.waitMs).toBeGreaterThan(5_000)
    expect(sent[1]?.waitMs).toBeLessThanOrEqual(9_000)
    sent[1]?.answer()
    await Promise.all(all)
  })

  it('refuses only the item whose turn does not come in time', async () => {
    const { sent, add } = recording()
    const first = add('a')
    const patient = add('b', 5_000)
    const error = await add('c', 5).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(BusyError)
    expect(error).toMatchObject({ subject: 'a turn', waitedMs: 5 })
    sent[0]?.answer()
    await settled()
    expect(sent[1]?.items).toEqual(['b'])
    sent[1]?.answer()
    expect(await Promise.all([first, patient])).toEqual(['A', 'B'])
  })

  it('does not refuse an item that was sent', async () => {
    const { sent, add } = recording()
    const first = add('a')
    const second = add('b', 20)
    sent[0]?.answer()
    await settled()
    expect(sent[1]?.items).toEqual(['b'])
    // Takes as long as another item may wait.
    await expect(add('c', 40)).rejects.toThrow(BusyError)
    sent[1]?.answer()
    expect(await Promise.all([first, second])).toEqual(['A', 'B'])
  })

  it('reports to each item how long it has waited itself, not how long the statement has', async () => {
    const { sent, add } = recording()
    const first = add('a')
    const patient = add('b', 5_000).catch((thrown: unknown) => thrown)
    // Takes as long as another item may wait.
    await expect(add('c', 40)).rejects.toThrow(BusyError)
    const late = add('d', 5_000).catch((thrown: unknown) => thrown)
    sent[0]?.answer()
    await first
    await settled()
    expect(sent[1]?.items).toEqual(['b', 'd'])
    const cause = new Error('below')
    sent[1]?.fail(new BusyError('the row', 1, 7, { cause }))
    const [busy, other] = await Promise.all([patient, late])
    expect(busy).toMatchObject({ name: 'BusyError', subject: 'the row', retryAfterMs: 7, cause })
    expect((busy as BusyError).waitedMs).toBeGreaterThan(20)
    expect((other as BusyError).waitedMs).toBeLessThan((busy as BusyError).waitedMs)
    expect((other as BusyError).waitedMs).toBeGreaterThanOrEqual(1)
  })

  it('fails a batch, and sends the next one', async () => {
    const { sent, add, coalescer } = recording()
    const failing = [add('a'), add('b'), add('c')].map((answer) =>
      answer.catch((error: Error) => error.message),
    )
    sent[0]?.fail(new Error('first'))
    await settled()
    const last = add('d')
    sent[1]?.fail(new Error('second'))
    await settled()
    sent[2]?.answer()
    expect(await Promise.all(failing)).toEqual(['first', 'second', 'second'])
    expect(await last).toBe('D')
    await settled()
    expect(coalescer.size).toBe(0)
  })

  it('sends each item of a refused batch alone', async () => {
    const sent: (readonly string[])[] = []
    const coalescer = new Coalescer<string, string>(async (items) => {
      sent.push(items)
      await settled()
      if (items.includes('bad')) throw new DatabaseError('no', '22000')
      return items.map((item) => item.toUpperCase())
    })
    const all = await Promise.allSettled(['a', 'b', 'bad', 'c'].map((item) => coalescer.add('k', item)))
    expect(all.map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'rejected', 'fulfilled'])
    expect(sent).toEqual([['a'], ['b', 'bad', 'c'], ['b'], ['bad'], ['c']])
  })

  it('does not send the items of a batch alone after a timeout, which is the fault of none of them', async () => {
    const { sent, add } = recording()
    const first = add('a')
    const others = [add('b'), add('c')]
    sent[0]?.answer()
    await first
    await settled()
    sent[1]?.fail(new StatementTimeoutError('too slow'))
    const ended = await Promise.allSettled(others)
    expect(ended.map(({ status }) => status)).toEqual(['rejected', 'rejected'])
    expect(sent).toHaveLength(2)
  })

  it('gathers the calls of one tick, and keeps two statements of a key in flight, if asked to', async () => {
    const sent: { items: readonly string[]; answer: () => void }[] = []
    const coalescer = new Coalescer<string, string>(
      async (items) => {
        const { promise, resolve } = deferred()
        sent.push({ items, answer: resolve })
        await promise
        return items
      },
      {
        maxInFlight: 2,
        gathersTick: true,
        countFitting: (items) => Math.max(1, items.indexOf('large')),
      },
    )
    const all = ['a', 'b', 'large', 'c', 'd'].map((item) => coalescer.add('k', item))
    expect(sent).toEqual([])
    await settled()
    expect(sent.map(({ items }) => items)).toEqual([['a', 'b'], ['large']])
    sent[1]?.answer()
    await settled()
    expect(sent[2]?.items).toEqual(['c'])
    for (let n = 0; n < 4; n++) {
      sent[n]?.answer()
      await settled()
    }
    expect(await Promise.all(all)).toEqual(['a', 'b', 'large', 'c', 'd'])
    expect(coalescer.size).toBe(0)
  })

  it('rejects all items if there is not a result for each', async () => {
    const coalescer = new Coalescer<string, string>(async () => [])
    await expect(coalescer.add('k', 'a')).rejects.toThrow('Sent 1 items, and got 0 results.')
  })
})

describe('a coalescer of several keys', () => {
  /** As `recording`, for statements of several keys. `locked` are the keys that another caller holds. */
  function recordingMany() {
    const sent: {
      groups: readonly (readonly string[])[]
      answer: (locked?: string[]) => void
      fail: (error: Error) => void
    }[] = []
    const alone: { items: readonly string[]; answer: () => void }[] = []
    const coalescer = new Coalescer<string, string>(
      async (items) => {
        const { promise, resolve } = deferred()
        alone.push({ items, answer: resolve })
        await promise
        return items.map((item) => item.toUpperCase())
      },
      {
        maxBatch: 4,
        sendMany: async (groups) => {
          const { promise, resolve } = deferred<string[] | Error>()
          sent.push({ groups, answer: (locked = []) => resolve(locked), fail: resolve })
          const locked = await promise
          if (locked instanceof Error) throw locked
          return groups.map((items) =>
            locked.includes(`${items[0]}`) ? undefined : items.map((item) => item.toUpperCase()),
          )
        },
      },
    )
    return {
      sent,
      alone,
      coalescer,
      add: (key: string) => coalescer.add(key, key, { waitMs: 500, subject: 'a turn' }),
    }
  }

  /** Occupies the three lanes, so that the next items are gathered. */
  function busy() {
    const all = recordingMany()
    const first = ['x', 'y', 'z'].map((key) => all.add(key))
    expect(all.alone.map(({ items }) => items)).toEqual([['x'], ['y'], ['z']])
    return { ...all, first }
  }

  it('lets keys share statements once three are in flight, with at most maxBatch items', async () => {
    // Fake timers keep the lanes occupied on a slow machine.
    vi.useFakeTimers({ toFake: ['setTimeout'] })
    onTestFinished(() => void vi.useRealTimers())
    const { sent, alone, add, first, coalescer } = busy()
    const all = ['a', 'b', 'a', 'c', 'd', 'e'].map((key) => add(key))
    await settled()
    expect(sent).toEqual([])
    alone[0]?.answer()
    await settled()
    expect(sent.map(({ groups }) => groups)).toEqual([[['a', 'a'], ['b'], ['c']]])
    alone[1]?.answer()
    await settled()
    expect(sent[1]?.groups).toEqual([['d'], ['e']])
    for (const { answer } of [...sent, ...alone]) answer()
    expect(await Promise.all(all)).toEqual(['A', 'B', 'A', 'C', 'D', 'E'])
    expect(await Promise.all(first)).toEqual(['X', 'Y', 'Z'])
    await settled()
    expect(coalescer.size).toBe(0)
  })

  it('neither waits for a key in flight nor sends it twice at a time', async () => {
    const { sent, alone, add } = busy()
    const all = ['x', 'a', 'b'].map((key) => add(key))
    alone[1]?.answer()
    await settled()
    expect(sent[0]?.groups).toEqual([['a'], ['b']])
    alone[0]?.answer()
    await settled()
    expect(alone[3]?.items).toEqual(['x'])
    for (const { answer } of [...sent, ...alone]) answer()
    expect(await Promise.all(all)).toEqual(['X', 'A', 'B'])
  })

  it('sends a locked key alone, and holds up no other key', async () => {
    const { sent, alone, add, coalescer } = busy()
    const answers = ['a', 'b', 'c'].map((key) => add(key))
    alone[0]?.answer()
    await settled()
    sent[0]?.answer(['b'])
    expect(await Promise.all([answers[0], answers[2]])).toEqual(['A', 'C'])
    expect(alone[3]?.items).toEqual(['b'])
    for (const { answer } of alone) answer()
    expect(await answers[1]).toBe('B')
    await settled()
    expect(coalescer.size).toBe(0)
  })

  it('sends each key alone if the server refused the statement, and rejects all if the answer was lost', async () => {
    // Fake timers keep the lanes occupied on a slow machine.
    vi.useFakeTimers({ toFake: ['setTimeout'] })
    onTestFinished(() => void vi.useRealTimers())
    const { sent, alone, add, coalescer } = busy()
    const refused = ['a', 'b'].map((key) => add(key))
    alone[0]?.answer()
    await settled()
    sent[0]?.fail(new DatabaseError('no', '22000'))
    await settled()
    expect(alone.slice(3).map(({ items }) => items)).toEqual([['a'], ['b']])
    const next = add('next') // in the free lane
    const lost = ['c', 'd'].map((key) => add(key).catch((error: Error) => error.message))
    alone[1]?.answer()
    await settled()
    sent[1]?.fail(new Error('lost'))
    expect(await Promise.all(lost)).toEqual(['lost', 'lost'])
    for (const { answer } of alone) answer()
    expect(await Promise.all([...refused, next])).toEqual(['A', 'B', 'NEXT'])
    await settled()
    expect(coalescer.size).toBe(0)
  })

  it('does not let keys that wait for locks hold up other keys', async () => {
    const { sent, alone, add, first, coalescer } = busy()
    const others = ['a', 'b'].map((key) => add(key))
    await expect.poll(() => sent.length).toBe(1)
    expect(alone).toHaveLength(3)
    sent[0]?.answer()
    expect(await Promise.all(others)).toEqual(['A', 'B'])
    for (const { answer } of alone) answer()
    await Promise.all(first)
    // Each lane was released once: three statements, and not more, are in flight again.
    const next = ['p', 'q', 'r', 's'].map((key) => add(key))
    expect(alone.slice(3).map(({ items }) => items)).toEqual([['p'], ['q'], ['r']])
    for (const { answer } of alone) answer()
    await settled()
    for (const { answer } of [...sent, ...alone]) answer()
    expect(await Promise.all(next)).toEqual(['P', 'Q', 'R', 'S'])
    await settled()
    expect(coalescer.size).toBe(0)
  })

  it('does not let a call with waitMs 0 wait for other keys', async () => {
    const { alone, coalescer, first, add } = busy()
    const now = coalescer.add('now', 'now', { waitMs: 0, subject: 'a turn' })
    expect(alone[3]?.items).toEqual(['now'])
    await expect(coalescer.add('now', 'again', { waitMs: 0, subject: 'a turn' })).rejects.toThrow(BusyError)
    for (const { answer } of alone) answer()
    expect(await now).toBe('NOW')
    await Promise.all(first)
    await settled()
    expect(coalescer.size).toBe(0)
    const next = ['p', 'q', 'r'].map((key) => add(key))
    expect(alone.slice(4)).toHaveLength(3)
    for (const { answer } of alone) answer()
    await Promise.all(next)
  })

  it('refuses an item whose turn does not come in time, and forgets its key', async () => {
    const { alone, coalescer, first } = busy()
    await expect(coalescer.add('late', 'late', { waitMs: 5, subject: 'a turn' })).rejects.toThrow(BusyError)
    expect(coalescer.size).toBe(3)
    for (const { answer } of alone) answer()
    await Promise.all(first)
    await settled()
    expect([coalescer.size, alone.length]).toEqual([0, 3])
  })
})
