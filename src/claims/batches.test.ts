import { describe, expect, it } from 'vitest'
import { deferred } from '../../test/deferred.js'
import { BusyError } from '../errors.js'
import { Batches } from './batches.js'

/** What was sent, each to be answered by hand. */
function recording(most?: number) {
  const sent: {
    items: readonly string[]
    waitMs: number
    answer: () => void
    fail: (error: Error) => void
  }[] = []
  const batches = new Batches<string, string>(async (items, waitMs) => {
    const { promise, resolve } = deferred<Error | undefined>()
    sent.push({ items, waitMs, answer: () => resolve(undefined), fail: resolve })
    const error = await promise
    if (error) throw error
    return items.map((item) => item.toUpperCase())
  }, most)
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
    expect(sent[0]?.waitMs).toBe(70)
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
