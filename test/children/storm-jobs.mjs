// The jobs of the storm, for the code that adds them, runs them and compares them with their history.
import { setTimeout as sleep } from 'node:timers/promises'
import { PermanentError } from '../../dist/index.js'

/** Short, so that takeovers come soon; a quarter of the handlers need about as long, or longer. */
export const LEASE_MS = 2_000

const common = {
  queue: 'storm',
  leaseMs: LEASE_MS,
  // Faults use up attempts: none of these jobs is to die of them.
  maxAttempts: 1_000,
  retry: { backoff: 'fixed', baseMs: 100 },
}

export const definitions = {
  plain: common,
  transactional: { ...common, transactional: true },
  flaky: common,
  flakyTransactional: { ...common, transactional: true },
  doomed: common,
}

/** Each up to what, of 1. */
const shares = [
  ['plain', 0.5],
  ['transactional', 0.85],
  ['flaky', 0.93],
  ['flakyTransactional', 0.98],
  ['doomed', 1],
]

/** The jobs of a storm: which kind each is, and how long its handler takes. */
export function planJobs(count, random, from = 0) {
  return Array.from({ length: count }, (_, n) => {
    const drawn = random()
    const [name] = shares.find(([, upTo]) => drawn < upTo)
    const size = random()
    const span = size < 0.2 ? [2, 50] : size < 0.75 ? [300, 1_500] : [1_500, 3_500]
    return { name, input: { n: from + n, ms: Math.round(span[0] + random() * (span[1] - span[0])) } }
  })
}

export function handlers(world) {
  const work = async ({ n, ms }, ctx) => {
    await sleep(ms)
    return { n, fence: ctx.fence }
  }
  // Only the transaction protects this write. The test would see a second one.
  const write = async ({ n, ms }, ctx) => {
    await sleep(ms / 2)
    await ctx.tx.query(`insert into ${world}.effect (n, fence) values ($1, $2)`, [n, ctx.fence])
    await sleep(ms / 2)
    return { n, fence: ctx.fence }
  }
  const failFirst = (handler) => async (input, ctx) => {
    const result = await handler(input, ctx)
    if (ctx.attempt === 1) throw new Error('the first attempt fails')
    return result
  }
  return {
    plain: work,
    transactional: write,
    flaky: failFirst(work),
    flakyTransactional: failFirst(write),
    doomed: async (input) => {
      await sleep(input.ms)
      throw new PermanentError('this one never works')
    },
  }
}
