import { describe, vi } from 'vitest'
import { inShort } from '../../test/depth.js'
import { describeAttemptSchedules } from '../../test/jobs/explore-attempts.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

/** More preemptions are for `npm run soak`. */
describe('attempts', () => describeAttemptSchedules(inShort))
