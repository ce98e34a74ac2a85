// Adding: in batches; one at a time with many in flight in one process; and the same from eight processes. Nobody works meanwhile.
import { JobProcess } from './process.mjs'
import { runRounds } from './rounds.mjs'
import { settings } from './settings.mjs'

const IN_FLIGHT = 24
const PROCESSES = 8
const WARM_MS = 300

const kinds = [
  {
    contest: `add in batches of ${settings.batch}`,
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
  for (const kind of kinds)
    results.push(
      ...(await runRounds({
        contest: kind.contest,
        names,
        rounds: settings.rounds,
        turn: (name) => addInAll(place, name, kind),
      })),
    )
  return results
}

/** Opened for each turn: all of them at once would be some sixty processes and more connections than the server has. */
async function addInAll(place, name, { processes: count, task, asked }) {
  const connections = asked.inFlight ?? 3
  const processes = await Promise.all(
    Array.from({ length: count }, () => JobProcess.open(name, { ...place, connections })),
  )
  const all = (ms) => Promise.all(processes.map((process) => process.call(task, { ...asked, ms })))
  try {
    await processes[0].call('clear')
    await all(WARM_MS)
    const before = await processes[0].call('outcomes')
    const rounds = await all(settings.roundMs)
    const added = rounds.reduce((sum, round) => sum + round.added, 0)
    const { left } = await processes[0].call('outcomes')
    if (left - before.left !== added) throw new Error(`${name}: ${added} added, ${left - before.left} there`)
    await processes[0].call('clear')
    return {
      perSecond: rounds.reduce((sum, { perSecond }) => sum + perSecond, 0),
      knobs: { connections: connections * count },
    }
  } finally {
    await Promise.all(processes.map((process) => process.close()))
  }
}
