// The tasks that a process can run with its contestant.
import { setTimeout as sleep } from 'node:timers/promises'
import { now } from './clock.mjs'
import { openContestant } from './contestants.mjs'
import { payloadOf, payloadsFrom } from './payload.mjs'

/** Later than this a round has failed. */
const MOST_MS = Number(process.env.BENCH_JOBS_MOST_MS ?? 180_000)
/** Share of a round's jobs that run before the clock starts: until then workers start and code is compiled. */
const UNTIMED_SHARE = 0.1

let own
let worker
let starts = []
/** By the number of the job: whoever waits for its start. */
const awaited = new Map()

export const tasks = {
  async open({ name, options }) {
    own = await openContestant(name, options)
    return own !== undefined
  },

  connections: () => own.connections,
  clear: () => own.clear(),
  outcomes: () => own.outcomes(),
  fill: (wanted) => own.fill({ ...wanted, payloadsFrom }),

  /** Adds `count` jobs, numbered from `first`. */
  async addAll({ count, batch, first = 0 }) {
    for (let n = 0; n < count; n += batch)
      await own.addMany(payloadsFrom(first + n, Math.min(batch, count - n)))
  },

  /** Batches, one after the other, until the time is over. */
  async addBatchesFor({ ms, batch }) {
    const startedAt = now()
    let added = 0
    while (now() < startedAt + ms) {
      await own.addMany(payloadsFrom(added, batch))
      added += batch
    }
    return { added, perSecond: (added * 1000) / (now() - startedAt) }
  },

  /** One at a time, so many in flight, until the time is over. */
  async addEachFor({ ms, inFlight }) {
    const startedAt = now()
    let added = 0
    const loop = async () => {
      while (now() < startedAt + ms) await own.addOne(payloadOf(added++))
    }
    await Promise.all(Array.from({ length: inFlight }, loop))
    return { added, perSecond: (added * 1000) / (now() - startedAt) }
  },

  /** @returns when it was called, and when it was confirmed */
  async addOne({ n }) {
    const calledAt = now()
    await own.addOne(payloadOf(n))
    return { calledAt, confirmedAt: now() }
  },

  /** At an even pace, whatever becomes of them. A tick that comes late adds all that are due; none is left out. */
  async addPaced({ perSecond, ms, first }) {
    const startedAt = now()
    const calledAt = []
    const running = new Set()
    while (now() < startedAt + ms) {
      const due = Math.floor(((now() - startedAt) * perSecond) / 1000) - calledAt.length
      if (due > 0) {
        const payloads = payloadsFrom(first + calledAt.length, due)
        const at = now()
        for (let n = 0; n < due; n++) calledAt.push(at)
        const adding = own.addMany(payloads).finally(() => running.delete(adding))
        running.add(adding)
      }
      await sleep(10)
    }
    await Promise.all(running)
    return { first, calledAt }
  },

  /** Runs all that were added before, and checks that each had one run and one outcome. */
  async drain({ count, concurrency }) {
    const runs = new Uint8Array(count)
    const untimed = Math.floor(count * UNTIMED_SHARE)
    let different = 0
    let all = 0
    let since
    const { promise: haveRun, resolve } = Promise.withResolvers()
    const draining = await own.work({
      concurrency,
      onStart({ n }) {
        all++
        if (runs[n]++ === 0) different++
        if (different === untimed) since ??= now()
        if (different === count) resolve()
      },
    })
    await inTime(haveRun, () => `${different} of ${count} have run`)
    // The handlers have run; the clock runs until their outcomes are committed.
    for (const until = now() + MOST_MS; (await own.outcomes()).left > 0; await sleep(1))
      if (now() > until) throw new Error(`${(await own.outcomes()).left} have no outcome`)
    const tookMs = now() - since
    await draining.stop()
    const { left, ended = count } = await own.outcomes()
    if (all !== count || left !== 0 || ended !== count)
      throw new Error(`${count} jobs: ${all} runs, ${ended} outcomes, ${left} left`)
    return { perSecond: ((count - untimed) * 1000) / tookMs, knobs: draining.knobs }
  },

  /** Runs so many of those that are there, and leaves the rest. */
  async drainSome({ count, concurrency }) {
    const untimed = Math.floor(count * UNTIMED_SHARE)
    let all = 0
    let since
    let until
    const { promise: haveRun, resolve } = Promise.withResolvers()
    const draining = await own.work({
      concurrency,
      onStart() {
        all++
        if (all === untimed) since = now()
        if (all !== count) return
        until = now()
        resolve()
      },
    })
    await inTime(haveRun, () => `${all} of ${count} have run`)
    await draining.stop()
    return { perSecond: ((count - untimed) * 1000) / (until - since), knobs: draining.knobs }
  },

  /** Works until it is told to stop, and writes down what started when. */
  async work({ concurrency, instances }) {
    starts = []
    const onStart = ({ n }) => {
      const at = now()
      starts.push([n, at])
      awaited.get(n)?.(at)
    }
    worker = await own.work({ concurrency, instances, onStart })
    return worker.knobs
  },
  started: () => starts.length,
  async startOf({ n }) {
    const found = starts.findLast(([started]) => started === n)
    if (found) return found[1]
    const { promise, resolve } = Promise.withResolvers()
    awaited.set(n, resolve)
    await inTime(promise, () => `job ${n} did not start`)
    awaited.delete(n)
    return await promise
  },
  async stop() {
    await worker.stop()
    worker = undefined
    return starts
  },

  async close() {
    await worker?.stop()
    await own?.close()
  },
}

async function inTime(promise, found) {
  const timer = new AbortController()
  const late = sleep(MOST_MS, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`after ${MOST_MS} ms ${found()}`)
  })
  try {
    await Promise.race([promise, late])
  } finally {
    timer.abort()
    late.catch(() => {})
  }
}
