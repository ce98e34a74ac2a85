// Where it is measured and who is there.
import { startRedis } from '../redis.mjs'
import { contestants } from './contestants.mjs'
import { findNode, versionOf } from './node-24.mjs'
import { JobProcess } from './process.mjs'
import { settings } from './settings.mjs'

const { BENCH_JOBS_ONLY, BENCH_JOBS_PARTS } = process.env

/** `BENCH_JOBS_ONLY=hand` takes those with that word in their name. */
const isWanted = (name) => name.includes(BENCH_JOBS_ONLY ?? '')

/** `BENCH_JOBS_PARTS=drain,latency` measures these, and nothing else. */
export const isPartWanted = (part) =>
  BENCH_JOBS_PARTS === undefined || BENCH_JOBS_PARTS.split(',').includes(part)

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
