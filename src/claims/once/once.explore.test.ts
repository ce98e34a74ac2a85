import { describeOnceSchedules } from '../../../test/claims/explore-once.js'
import { inShort } from '../../../test/depth.js'

/** More preemptions, and all schedules of most, are for `npm run soak`. */
describeOnceSchedules(inShort)
