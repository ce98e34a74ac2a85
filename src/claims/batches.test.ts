import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { deferred } from '../../test/deferred.js'
import { BusyError, DatabaseError } from '../errors.js'
import { Batches } from './batches.js'

/** What was sent, each to be answered by hand. */
function recording(most?: number) {
  const sent: {
    items: readonly string[]
    waitMs: number
    answer: () => void
    fail: (error: Error) => void
  }[] = []
  const batches = new Batches<string, string>(
    async (items, waitMs) => {
      const { promise, resolve } = deferred<Error | undefined>()
      sent.push({ items, waitMs, answer: () => resolve(undefined), fail: resolve })
      const error = await promise
      if (error) throw error
      return items.map((item) => item.toUpperCase())
    },
    most === undefined ? {} : { most },
  )
  return {
    sent,
    add: (item: string, waitMs = 500, key = 'k') => batches.add(key, item, waitMs, 'a turn'),
    batches,
  }
}

/** Lets everything go on that waits for nothing but a promise. */
const settled = () => new Promise((resolve) => setImmediate(resolve))

describe('batches', () => {
  it('send the first at once, and what came meanwhile together, in order', async () => {
    const { sent, add, batches } = recording()
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
    expect(batches.size).toBe(0)
    void add('e')
    expect(sent[2]?.items).toEqual(['e'])
    sent[2]?.answer()
  })

  it('keep keys apart', () => {
    const { sent, add, batches } = recording()
    void add('a', 500, 'one')
    void add('b', 500, 'two')
    expect(sent.map(({ items }) => items)).toEqual([['a'], ['b']])
    expect(batches.size).toBe(2)
    for (const { answer } of sent) answer()
  })

  it('are no larger than allowed', async () => {
    const { sent, add } = recording(2)
    const all = ['a', 'b', 'c', 'd'].map((item) => add(item))
    for (let n = 0; n < 3; n++) {
      sent[n]?.answer()
      await settled()
    }
    expect(sent.map(({ items }) => items)).toEqual([['a'], ['b', 'c'], ['d']])
    expect(await Promise.all(all)).toEqual(['A', 'B', 'C', 'D'])
  })

  it('may wait as long as the most patient of them still may', async () => {
    const { sent, add } = recording()
    const all = [add('a', 70), add('b', 5_000), add('c', 9_000)]
    await settled()
    sent[0]?.answer()
    await settled()
    // What is left of it: a busy machine may have taken some.
    expect(sent[0]?.waitMs).toBeGreaterThan(0)
    expect(sent[0]?.waitMs).toBeLessThanOrEqual(70)
    expect(sent[1]?.waitMs).toBeGreaterThan(5_000)
    expect(sent[1]?.waitMs).toBeLessThanOrEqual(9_000)
    sent[1]?.answer()
    await Promise.all(all)
  })

  it('turn away whose turn does not come in time, and nobody else', async () => {
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

  it('turn nobody away who was sent', async () => {
    const { sent, add } = recording()
    const first = add('a')
    const second = add('b', 20)
    sent[0]?.answer()
    await settled()
    expect(sent[1]?.items).toEqual(['b'])
    // As long as it takes for another to be turned away.
    await expect(add('c', 40)).rejects.toThrow(BusyError)
    sent[1]?.answer()
    expect(await Promise.all([first, second])).toEqual(['A', 'B'])
  })

  it('tell each how long it has waited itself, not how long the statement has', async () => {
    const { sent, add } = recording()
    const first = add('a')
    const patient = add('b', 5_000).catch((thrown: unknown) => thrown)
    // As long as it takes for another to be turned away.
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
    expect((busy as BusyError).waitedMs).toBeGreaterThanOrEqual(39)
    expect((other as BusyError).waitedMs).toBeLessThan((busy as BusyError).waitedMs)
    expect((other as BusyError).waitedMs).toBeGreaterThanOrEqual(1)
  })

  it('fail alone, and those after them go on', async () => {
    const { sent, add, batches } = recording()
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
    expect(batches.size).toBe(0)
  })

  it('that were not answered each are an error', async () => {
    const batches = new Batches<string, string>(async () => [])
    await expect(batches.add('k', 'a', 10, 'a turn')).rejects.toThrow('1 were sent together, and 0 answered')
  })
})

describe('batches of several keys', () => {
  /** What was sent together, each to be answered by hand; `locked` are those that another holds. */
  function recordingMany() {
    const sent: {
      groups: readonly (readonly string[])[]
      answer: (locked?: string[]) => void
      fail: (error: Error) => void
    }[] = []
    const alone: { items: readonly string[]; answer: () => void }[] = []
    const batches = new Batches<string, string>(
      async (items) => {
        const { promise, resolve } = deferred()
        alone.push({ items, answer: resolve })
        await promise
        return items.map((item) => item.toUpperCase())
      },
      {
        most: 4,
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
    return { sent, alone, batches, add: (key: string) => batches.add(key, key, 500, 'a turn') }
  }

  /** Three on their way, each for itself; what comes now gathers. */
  function busy() {
    const all = recordingMany()
    const first = ['x', 'y', 'z'].map((key) => all.add(key))
    expect(all.alone.map(({ items }) => items)).toEqual([['x'], ['y'], ['z']])
    return { ...all, first }
  }

  it('go together once three are on their way, no more than allowed', async () => {
    // No lane is left because the machine was busy with something else.
    vi.useFakeTimers({ toFake: ['setTimeout'] })
    onTestFinished(() => void vi.useRealTimers())
    const { sent, alone, add, first, batches } = busy()
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
    expect(batches.size).toBe(0)
  })

  it('do not wait for a key that is on its way, and it is not sent twice at a time', async () => {
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

  it('send for itself what another has locked, and hold up nobody', async () => {
    const { sent, alone, add, batches } = busy()
    const answers = ['a', 'b', 'c'].map((key) => add(key))
    alone[0]?.answer()
    await settled()
    sent[0]?.answer(['b'])
    expect(await Promise.all([answers[0], answers[2]])).toEqual(['A', 'C'])
    expect(alone[3]?.items).toEqual(['b'])
    for (const { answer } of alone) answer()
    expect(await answers[1]).toBe('B')
    await settled()
    expect(batches.size).toBe(0)
  })

  it('are sent each for itself if the server has refused them, and fail together if it was lost', async () => {
    // No lane is left because the machine was busy with something else.
    vi.useFakeTimers({ toFake: ['setTimeout'] })
    onTestFinished(() => void vi.useRealTimers())
    const { sent, alone, add, batches } = busy()
    const refused = ['a', 'b'].map((key) => add(key))
    alone[0]?.answer()
    await settled()
    sent[0]?.fail(new DatabaseError('no', '22000'))
    await settled()
    expect(alone.slice(3).map(({ items }) => items)).toEqual([['a'], ['b']])
    const next = add('next') // in the lane that is free again
    const lost = ['c', 'd'].map((key) => add(key).catch((error: Error) => error.message))
    alone[1]?.answer()
    await settled()
    sent[1]?.fail(new Error('lost'))
    expect(await Promise.all(lost)).toEqual(['lost', 'lost'])
    for (const { answer } of alone) answer()
    expect(await Promise.all([...refused, next])).toEqual(['A', 'B', 'NEXT'])
    await settled()
    expect(batches.size).toBe(0)
  })

  it('go on without those that wait for someone else', async () => {
    const { sent, alone, add, first, batches } = busy()
    const others = ['a', 'b'].map((key) => add(key))
    await expect.poll(() => sent.length, { timeout: 30_000 }).toBe(1)
    expect(alone).toHaveLength(3)
    sent[0]?.answer()
    expect(await Promise.all(others)).toEqual(['A', 'B'])
    for (const { answer } of alone) answer()
    await Promise.all(first)
    // Each lane was given back once: three, and not more, go for themselves again.
    const next = ['p', 'q', 'r', 's'].map((key) => add(key))
    expect(alone.slice(3).map(({ items }) => items)).toEqual([['p'], ['q'], ['r']])
    for (const { answer } of alone) answer()
    await settled()
    for (const { answer } of [...sent, ...alone]) answer()
    expect(await Promise.all(next)).toEqual(['P', 'Q', 'R', 'S'])
    await settled()
    expect(batches.size).toBe(0)
  })

  it('do not keep waiting for other keys whoever is to wait for nobody', async () => {
    const { alone, batches, first, add } = busy()
    const now = batches.add('now', 'now', 0, 'a turn')
    expect(alone[3]?.items).toEqual(['now'])
    await expect(batches.add('now', 'again', 0, 'a turn')).rejects.toThrow(BusyError)
    for (const { answer } of alone) answer()
    expect(await now).toBe('NOW')
    await Promise.all(first)
    await settled()
    expect(batches.size).toBe(0)
    const next = ['p', 'q', 'r'].map((key) => add(key))
    expect(alone.slice(4)).toHaveLength(3)
    for (const { answer } of alone) answer()
    await Promise.all(next)
  })

  it('turn away whose turn does not come in time, and forget its key', async () => {
    const { alone, batches, first } = busy()
    await expect(batches.add('late', 'late', 5, 'a turn')).rejects.toThrow(BusyError)
    expect(batches.size).toBe(3)
    for (const { answer } of alone) answer()
    await Promise.all(first)
    await settled()
    expect([batches.size, alone.length]).toEqual([0, 3])
  })
})
