import { exploreWith } from '../src/testing/explore/explore.js'
import type { ExploreOptions } from '../src/testing/explore/options.js'
import type { ExploreReport } from '../src/testing/explore/report/report.js'

/** Explores functions of Dibs itself. A note names each function without a yield point, so that none is missed. */
export const exploreDibs = (options: ExploreOptions): Promise<ExploreReport> =>
  exploreWith(options, { namesFunctionsOfDibs: true })
