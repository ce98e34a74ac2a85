import { vi } from 'vitest'
import { describeHoldSchedules } from '../../../test/claims/explore-holds.js'
import { inShort } from '../../../test/depth.js'

/** A busy machine needs more time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeHoldSchedules(inShort)
