// One guard removed at a time; the named tests must notice. `npm run mutate` runs them all.
import { acquireMutations } from './acquire.mjs'
import { aggregateMutations } from './aggregates.mjs'
import { electionMutations } from './elections.mjs'
import { flightMutations } from './flight.mjs'
import { groundMutations } from './ground.mjs'
import { httpMutations } from './http.mjs'
import { jobMutations } from './jobs.mjs'
import { kvMutations } from './kv.mjs'
import { lockMutations } from './locks.mjs'
import { monitorMutations } from './monitors.mjs'
import { onceMutations } from './once.mjs'
import { preconditionMutations } from './preconditions.mjs'
import { quotaMutations } from './quota.mjs'
import { rateMutations } from './rate.mjs'
import { tableMutations } from './tables.mjs'

export const mutations = [
  ...groundMutations,
  ...kvMutations,
  ...onceMutations,
  ...quotaMutations,
  ...rateMutations,
  ...acquireMutations,
  ...lockMutations,
  ...flightMutations,
  ...httpMutations,
  ...preconditionMutations,
  ...tableMutations,
  ...aggregateMutations,
  ...electionMutations,
  ...monitorMutations,
  ...jobMutations,
]
