// From one worker to a thousand, in at most eight processes: how fast a backlog goes, and how long a job waits for its start when there is
// little to do. More workers than one needs must not cost what they were meant to gain.
import { setTimeout as sleep } from 'node:timers/promises'
import { contestants } from './contestants.mjs'
import { JobProcess } from './process.mjs'
import { p50p99 } from './rounds.mjs'
import { analyze } from './server.mjs'
import { settings } from './settings.mjs'

const INSTANCES = [1, 10, 100, 1_000]
const PROCESSES = 8
/** Jobs that each worker runs at once. */
const CONCURRENCY = 10
const QUIET = { perSecond: 200, ms: 5_000 }
const MOST_MS = 180_000

export async function measureWorkers(place, names) {
  const results = []
  for (const contestant of names)
    for (const instances of INSTANCES) {
      results.push({ contestant, instances, ...(await measureOne(place, contestant, instances)) })
      process.stderr.write(`${contestant}: ${instances} workers\n`)
    }
  return results
}

async function measureOne(place, name, instances) {
  const options = { ...place, hints: true }
  const count = Math.min(PROCESSES, instances)
  const consumers = await Promise.all(Array.from({ length: count }, () => JobProcess.open(name, options)))
  const producer = await JobProcess.open(name, options)
  const startedInAll = async () =>
    (await Promise.all(consumers.map((consumer) => consumer.call('started')))).reduce((sum, n) => sum + n, 0)
  const untilStarted = async (wanted) => {
    for (const until = Date.now() + MOST_MS; (await startedInAll()) < wanted; await sleep(20))
      if (Date.now() > until) throw new Error(`${name}: ${await startedInAll()} of ${wanted} have run`)
  }
  try {
    await producer.call('clear')
    await producer.call('addAll', { count: settings.crowdJobs, batch: settings.batch })
    await analyze(place.url, contestants[name].schema)
    await Promise.all(
      consumers.map((consumer, n) =>
        consumer.call('work', { concurrency: CONCURRENCY, instances: shareOf(instances, count, n) }),
      ),
    )
    await untilStarted(settings.crowdJobs)
    await sleep(1_000) // and nothing to do
    const { first, calledAt } = await producer.call('addPaced', { ...QUIET, first: settings.crowdJobs })
    await untilStarted(settings.crowdJobs + calledAt.length)
    const starts = (await Promise.all(consumers.map((consumer) => consumer.call('stop')))).flat()
    const { left, ended } = await producer.call('outcomes')
    const all = settings.crowdJobs + calledAt.length
    const startedAt = new Map(starts)
    if (starts.length !== all || startedAt.size !== all || left !== 0 || ended !== all)
      throw new Error(`${name}: ${all} jobs, ${starts.length} runs, ${ended} outcomes, ${left} left`)
    return {
      perSecond: rateOf(starts.filter(([n]) => n < settings.crowdJobs).map(([, at]) => at)),
      waits: p50p99(calledAt.map((at, n) => startedAt.get(first + n) - at)),
    }
  } finally {
    await Promise.all([producer, ...consumers].map((process) => process.close()))
  }
}

/** The number of workers in process `n`: an even split, where the first processes take the remainder. */
const shareOf = (instances, processes, n) => Math.floor((instances + processes - 1 - n) / processes)

/** Without the first tenth: until then they start, one after the other. */
function rateOf(times) {
  const sorted = times.toSorted((a, b) => a - b)
  const untimed = Math.floor(sorted.length / 10)
  return Math.round(((sorted.length - untimed) * 1000) / (sorted.at(-1) - sorted[untimed]))
}

export const workersTable = (rows) =>
  [
    `| workers of ${CONCURRENCY} at once, in at most ${PROCESSES} processes | workers | backlog of ${settings.crowdJobs} /s | ${QUIET.perSecond}/s: add → start p50, p99 ms |`,
    '|---|---|---|---|',
    ...rows.map(
      (row) => `| ${row.contestant} | ${row.instances} | ${row.perSecond} | ${row.waits.join(', ')} |`,
    ),
  ].join('\n')
