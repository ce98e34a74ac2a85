// The contests of the jobs, and their tables.
import { measureAdding } from './adding.mjs'
import { measureDraining } from './draining.mjs'
import { latencyTable, measureLatency } from './latency.mjs'
import { isPartWanted, onPlace } from './place.mjs'

/** @returns `measured` for the machine and `tables` for people */
export async function measureJobs(url) {
  return await onPlace(url, async (place, names, knobs) => {
    const rates = [
      ...(isPartWanted('drain') ? await measureDraining(place, names) : []),
      ...(isPartWanted('add') ? await measureAdding(place, names) : []),
    ]
    const latency = isPartWanted('latency') ? await measureLatency(place, names) : []
    return {
      measured: { knobs, rates, latency },
      tables: [
        JSON.stringify(knobs),
        ...(rates.length > 0 ? [rateTable(rates)] : []),
        ...(latency.length > 0 ? [latencyTable(latency)] : []),
      ],
    }
  })
}

const rateTable = (rows) =>
  [
    '| contest | contestant | /s | ratio to the best PostgreSQL peer | spread | knobs |',
    '|---|---|---|---|---|---|',
    ...rows.map(
      ({ contest, contestant, perSecond, ratio, spread, knobs }) =>
        `| ${contest} | ${contestant} | ${perSecond} | ${ratio} | ${spread.join('–')} | ${JSON.stringify(knobs ?? {}).replaceAll('"', '')} |`,
    ),
  ].join('\n')
