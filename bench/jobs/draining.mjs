// Claim, run, complete: jobs that do nothing are all there before a worker starts, and it takes as long as it takes until the last outcome is
// committed. Each contestant keeps its process through all rounds, so that its code is as warm as it gets.
import { contestants, takesPart } from './contestants.mjs'
import { JobProcess } from './process.mjs'
import { runRounds } from './rounds.mjs'
import { analyze } from './server.mjs'
import { settings } from './settings.mjs'

const CONCURRENCIES = [50, 1_000]
/** One job a statement: with the same number as the others a round would take minutes. */
const isSlow = (name) => name.startsWith('BullMQ, PostgreSQL')

export async function measureDraining(place, names) {
  const results = []
  for (const concurrency of CONCURRENCIES) {
    const processes = await openEach(place, entriesFor(names, concurrency))
    try {
      results.push(
        ...(await runRounds({
          contest: `claim, run, complete: concurrency ${concurrency}`,
          names: [...processes.keys()],
          rounds: settings.rounds,
          async turn(name) {
            const { process, schema } = processes.get(name)
            const count = isSlow(name) ? settings.slowJobs : settings.jobs
            await process.call('clear')
            await process.call('addAll', { count, batch: settings.batch })
            await analyze(place.url, schema)
            return await process.call('drain', { count, concurrency })
          },
        })),
      )
    } finally {
      for (const { process } of processes.values()) await process.close()
    }
  }
  return results
}

/** By hand also in the batches that others claim in, whatever they run at once; ours and Graphile Worker claim ahead. */
function entriesFor(all, concurrency) {
  const { aheadBatch: batch } = settings
  const names = all.filter((name) => takesPart(name, 'drain'))
  const ahead = names.filter((name) => name.startsWith('by hand') && concurrency < batch)
  return [
    ...names.map((name) => ({ name, label: name, options: {} })),
    ...ahead.map((name) => ({ name, label: `${name}, batch ${batch}`, options: { batch } })),
  ]
}

async function openEach(place, entries) {
  const processes = new Map()
  for (const { name, label, options } of entries) {
    const process = await JobProcess.open(name, { ...place, ...options })
    if (process) processes.set(label, { process, schema: contestants[name].schema })
  }
  return processes
}
