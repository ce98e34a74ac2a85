import { describe, vi } from 'vitest'
import { inShort } from '../../test/depth.js'
import { describeFlightSchedules } from '../../test/single-flight/explore-flights.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

/** More preemptions are for `npm run soak`. */
describe('single-flight', () => describeFlightSchedules(inShort))
