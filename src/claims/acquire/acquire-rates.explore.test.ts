import { vi } from 'vitest'
import { describeRateSchedules } from '../../../test/claims/explore-acquire-rates.js'
import { inShort } from '../../../test/depth.js'

/** A busy machine needs more time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeRateSchedules(inShort)
