// From the call that adds a job to the start of its handler, in a worker that has nothing else to do and lives in another process. One job at a
// time: the next is added a while after the last one has started.
import { setTimeout as sleep } from 'node:timers/promises'
import { takesPart } from './contestants.mjs'
import { JobProcess } from './process.mjs'
import { p50p99 } from './rounds.mjs'
import { settings } from './settings.mjs'

const WARM = 20

export async function measureLatency(place, names) {
  const results = []
  for (const contestant of names.filter((name) => takesPart(name, 'latency')))
    results.push({ contestant, ...(await measureOne(place, contestant)) })
  return results
}

async function measureOne(place, name) {
  const options = { ...place, hints: true }
  const [producer, consumer] = [await JobProcess.open(name, options), await JobProcess.open(name, options)]
  try {
    await producer.call('clear')
    const knobs = await consumer.call('work', { concurrency: 50 })
    const sinceCall = []
    const sinceConfirmed = []
    for (let n = 0; n < WARM + settings.samples; n++) {
      const { calledAt, confirmedAt } = await producer.call('addOne', { n })
      const startedAt = await consumer.call('startOf', { n })
      if (n >= WARM) {
        sinceCall.push(startedAt - calledAt)
        sinceConfirmed.push(startedAt - confirmedAt)
      }
      await sleep(5 + Math.random() * 10)
    }
    const starts = await consumer.call('stop')
    if (starts.length !== WARM + settings.samples) throw new Error(`${name}: ${starts.length} runs`)
    return { sinceCall: p50p99(sinceCall), sinceConfirmed: p50p99(sinceConfirmed), knobs }
  } finally {
    await producer.close()
    await consumer.close()
  }
}

export const latencyTable = (rows) =>
  [
    '| add → start, idle worker in another process, hints on | since the call p50, p99 ms | since it was confirmed p50, p99 ms |',
    '|---|---|---|',
    ...rows.map(
      (row) => `| ${row.contestant} | ${row.sinceCall.join(', ')} | ${row.sinceConfirmed.join(', ')} |`,
    ),
  ].join('\n')
