import { vi } from 'vitest'
import { describeAcquireSchedules } from '../../../test/claims/explore-acquire.js'
import { inShort } from '../../../test/depth.js'

/** A busy machine needs more time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeAcquireSchedules(inShort)
