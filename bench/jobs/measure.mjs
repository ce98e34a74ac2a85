// The contests of the jobs, and their tables.
import { startRedis } from '../redis.mjs'
import { measureAdding } from './adding.mjs'
import { contestants } from './contestants.mjs'
import { measureDraining } from './draining.mjs'
import { latencyTable, measureLatency } from './latency.mjs'
import { findNode, versionOf } from './node-24.mjs'
import { JobProcess } from './process.mjs'
import { settings } from './settings.mjs'

/** `BENCH_JOBS_ONLY=hand` takes those with that word in their name. */
const isWanted = (name) => name.includes(process.env.BENCH_JOBS_ONLY ?? '')
const parts = (process.env.BENCH_JOBS_PARTS ?? 'drain,add,latency').split(',')

/** @returns `measured` for the machine and `tables` for people */
export async function measureJobs(url) {
  return await onPlace(url, async (place, names, knobs) => {
    const rates = [
      ...(parts.includes('drain') ? await measureDraining(place, names) : []),
      ...(parts.includes('add') ? await measureAdding(place, names) : []),
    ]
    const latency = parts.includes('latency') ? await measureLatency(place, names) : []
    return {
      measured: { knobs, rates, latency },
      tables: [JSON.stringify(knobs), rateTable(rates), latencyTable(latency)],
    }
  })
}

/** With the tables of all contestants made, and a Redis if there is one. */
export async function onPlace(url, measure) {
  const redis = await startRedis()
  const place = { url, redisUrl: redis?.url }
  try {
    const names = []
    for (const name of Object.keys(contestants).filter(isWanted)) {
      const process = await JobProcess.open(name, { ...place, setUp: true })
      if (process) names.push(name)
      else console.log(`${name}: not there, skipped`)
      await process?.close()
    }
    return await measure(place, names, { node: versionOf(findNode()), ...settings })
  } finally {
    await redis?.stop()
  }
}

const rateTable = (rows) =>
  [
    '| contest | contestant | /s | ratio | spread | knobs |',
    '|---|---|---|---|---|---|',
    ...rows.map(
      ({ contest, contestant, perSecond, ratio, spread, knobs }) =>
        `| ${contest} | ${contestant} | ${perSecond} | ${ratio} | ${spread.join('–')} | ${JSON.stringify(knobs ?? {}).replaceAll('"', '')} |`,
    ),
  ].join('\n')
