// Cost of a take from a quota or a rate limit, compared with a peer: one hot key and many; one process and eight.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { keyOf, openRefused, openTakers, takeFor } from './takers.mjs'

const IN_FLIGHT = 24
const PROCESSES = 8
const spreads = { 'one hot key': 1, '1,000 keys': 1000 }

export async function limitContest(url) {
  const { takers, close } = await openTakers(url, IN_FLIGHT)
  const full = await openRefused(url, IN_FLIGHT)
  const children = Array.from({ length: PROCESSES }, () =>
    fork(import.meta.filename, [], { env: { ...process.env, BENCH_TAKERS: url } }),
  )
  await Promise.all(children.map((child) => once(child, 'message')))
  const each = (contestant) =>
    Object.fromEntries(Object.entries(takers).map(([name, take]) => [name, contestant(name, take)]))
  const contests = Object.entries(spreads).flatMap(([spread, keys]) => [
    {
      name: `limits: ${spread}`,
      inFlight: IN_FLIGHT,
      contestants: each((_, take) => () => take(keyOf(keys))),
    },
    {
      name: `limits: ${spread}, ${PROCESSES} processes`,
      inFlight: IN_FLIGHT,
      // Each round is run by the processes, and counted here.
      measures: true,
      contestants: each((name) => (ms) => takeInAll(children, { name, keys, ms })),
    },
  ])
  contests.push({ name: 'limits: refused', inFlight: IN_FLIGHT, contestants: full.takers })
  return {
    contests,
    async close() {
      await full.close()
      for (const child of children) child.disconnect()
      await Promise.all(children.map((child) => once(child, 'exit')))
      await close()
    },
  }
}

async function takeInAll(children, round) {
  const rates = await Promise.all(
    children.map(async (child) => {
      child.send(round)
      const [{ perSecond, error }] = await once(child, 'message')
      if (error) throw new Error(error)
      return perSecond
    }),
  )
  return { perSecond: rates.reduce((sum, rate) => sum + rate, 0) }
}

/** One of the processes: takes when told, and ends with its parent. */
if (process.env.BENCH_TAKERS && process.send) {
  const inFlight = IN_FLIGHT / PROCESSES
  const { takers, close } = await openTakers(process.env.BENCH_TAKERS, inFlight)
  process.on('message', async ({ name, keys, ms }) => {
    try {
      process.send({ perSecond: await takeFor(ms, takers[name], keys, inFlight) })
    } catch (error) {
      process.send({ error: String(error) })
    }
  })
  process.on('disconnect', close)
  process.send('ready')
}
