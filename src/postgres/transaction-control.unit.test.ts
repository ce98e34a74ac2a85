import { expect, it } from 'vitest'
import { hasQueuedEnd } from './transaction-control.js'

class Queued {
  reads = 0
  readonly #text: string

  constructor(text: string) {
    this.#text = text
  }

  get text(): string {
    this.reads++
    return this.#text
  }
}

function newClient() {
  const queue: Queued[] = []
  return { _queryQueue: queue, _getActiveQuery: () => null, query() {}, escapeIdentifier() {} }
}

it('reads each query of a long queue once', () => {
  const client = newClient()
  const all: Queued[] = []
  for (let n = 0; n < 1_000; n++) {
    expect(hasQueuedEnd(client)).toBe(false)
    const query = new Queued(`select ${n}`)
    all.push(query)
    client._queryQueue.push(query)
    if (n % 3 === 0) client._queryQueue.shift()
  }
  expect(Math.max(...all.map(({ reads }) => reads))).toBe(1)
})

it('finds an end wherever it is in the queue, each time', () => {
  const client = newClient()
  const push = (text: string) => client._queryQueue.push(new Queued(text))
  push('select 1')
  expect(hasQueuedEnd(client)).toBe(false)
  push('commit')
  expect(hasQueuedEnd(client)).toBe(true)
  push('select 2')
  expect(hasQueuedEnd(client)).toBe(true)
  expect(hasQueuedEnd(client)).toBe(true)
  client._queryQueue.splice(0, 2)
  expect(hasQueuedEnd(client)).toBe(false)
})
