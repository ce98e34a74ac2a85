import { vi } from 'vitest'
import { describeSingletonSchedules } from '../../../test/claims/explore-singleton.js'
import { inShort } from '../../../test/depth.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 60_000 })

/** More preemptions are for `npm run soak`. */
describeSingletonSchedules(inShort)
