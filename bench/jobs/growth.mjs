// How rates change with more jobs, a long snapshot or more workers: Dibs and the hand-written loop.
import { contestants } from './contestants.mjs'
import { crowdTable, measureCrowds } from './growth-crowd.mjs'
import { measureHeldSnapshot, snapshotTable } from './growth-snapshot.mjs'
import { measureWorkers, workersTable } from './growth-workers.mjs'
import { isPartWanted, onPlace } from './place.mjs'

export async function measureJobsGrowth(url) {
  return await onPlace(url, async (place, all, knobs) => {
    const names = all.filter((name) => contestants[name].grows)
    const crowds = isPartWanted('crowd') ? await measureCrowds(place, names) : []
    const snapshot = isPartWanted('snapshot') ? await measureHeldSnapshot(place, names) : []
    const workers = isPartWanted('workers') ? await measureWorkers(place, names) : []
    return {
      measured: { knobs, crowds, snapshot, workers },
      tables: [
        JSON.stringify(knobs),
        ...(crowds.length > 0 ? [crowdTable(crowds)] : []),
        ...(snapshot.length > 0 ? [snapshotTable(snapshot)] : []),
        ...(workers.length > 0 ? [workersTable(workers)] : []),
      ],
    }
  })
}
