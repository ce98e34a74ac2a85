// Adding: in batches; one at a time with many in flight in one process; and the same from eight processes. Nobody works meanwhile.
import { takesPart } from './contestants.mjs'
import { JobProcess } from './process.mjs'
import { runRounds } from './rounds.mjs'
import { settings } from './settings.mjs'

const IN_FLIGHT = 24
const PROCESSES = 8
const WARM_MS = 500

const kinds = [
  {
    contest: `add in batches of ${settings.batch}, one after the other`,
    processes: 1,
    task: 'addBatchesFor',
    asked: { batch: settings.batch },
  },
  {
    contest: `add one at a time, ${IN_FLIGHT} in flight`,
    processes: 1,
    task: 'addEachFor',
    asked: { inFlight: IN_FLIGHT },
  },
  {
    contest: `add one at a time, ${PROCESSES} processes × ${IN_FLIGHT / PROCESSES} in flight`,
    processes: PROCESSES,
    task: 'addEachFor',
    asked: { inFlight: IN_FLIGHT / PROCESSES },
  },
]

export async function measureAdding(place, names) {
  const results = []
  for (const kind of kinds) {
    const kept = new Map()
    // One process each stays open, so that its code is as warm as it gets. Eight each would be some sixty processes, and more
    // connections than the server has.
    const stays = kind.processes === 1
    const turn = async (name) => {
      const processes = kept.get(name) ?? (await openAll(place, name, kind))
      if (stays) kept.set(name, processes)
      try {
        return await addInAll(name, processes, kind)
      } finally {
        if (!stays) await closeAll(processes)
      }
    }
    try {
      results.push(
        ...(await runRounds({
          contest: kind.contest,
          names: names.filter((name) => takesPart(name, kind.contest)),
          rounds: settings.rounds,
          turn,
        })),
      )
    } finally {
      for (const processes of kept.values()) await closeAll(processes)
    }
  }
  return results
}

const openAll = (place, name, { processes, asked }) =>
  Promise.all(
    Array.from({ length: processes }, () =>
      JobProcess.open(name, { ...place, connections: asked.inFlight ?? 1 }),
    ),
  )

const closeAll = (processes) => Promise.all(processes.map((process) => process.close()))

async function addInAll(name, processes, { task, asked }) {
  const [first] = processes
  const all = (ms) => Promise.all(processes.map((process) => process.call(task, { ...asked, ms })))
  await first.call('clear')
  await all(WARM_MS)
  const before = await first.call('outcomes')
  const rounds = await all(settings.roundMs)
  const added = rounds.reduce((sum, round) => sum + round.added, 0)
  const { left } = await first.call('outcomes')
  if (left - before.left !== added) throw new Error(`${name}: ${added} added, ${left - before.left} there`)
  await first.call('clear')
  return {
    perSecond: rounds.reduce((sum, { perSecond }) => sum + perSecond, 0),
    knobs: { processes: processes.length, connections: await first.call('connections') },
  }
}
